"""Memory of threads, in processes of their own: a process cannot take the setting back."""

import subprocess
import sys
from typing import Final

import pytest

THREADS: Final = 8
COUNT: Final = f"""
import ctypes, sys, threading
from evener.runtime.memory import share_one_arena

shared = share_one_arena() if sys.argv[1] == "shared" else True
begun = threading.Barrier({THREADS})
def work():
    begun.wait()
    return bytes(100_000)
threads = [threading.Thread(target=work) for _ in range({THREADS})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if shared:
    ctypes.CDLL(None).malloc_stats()
"""


def arenas(how: str) -> int:
    """Return the number of arenas that a process with threads has made, by glibc's own statistics."""
    run = subprocess.run([sys.executable, "-c", COUNT, how], check=True, capture_output=True, text=True)
    return run.stderr.count("Arena ")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_threads_share_one_arena() -> None:
    assert arenas("shared") == 1
    assert arenas("as it is") > 1
