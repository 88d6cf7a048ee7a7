"""Becomes a program that must not outlive its parent: `python launch.py PARENT_PID PROGRAM ARGUMENT...`.

This asks the kernel to kill the process when the thread that started it dies, a setting that survives exec. It is a program of its own
because code between fork and exec of a threaded process can deadlock.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

parent, *argv = sys.argv[1:]
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(parent):  # it died before that took effect
    sys.exit(1)
try:
    os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
except OSError as cause:
    sys.exit(f"{argv[0]}: {cause.strerror}")
