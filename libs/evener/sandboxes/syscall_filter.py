"""The system calls that programs in `bubblewrap` may not make: a seccomp filter, as a classic BPF program.

It refuses what Docker's profile refuses to programs without capabilities, as far as it is a way to more of the kernel: new namespaces,
mounts, keys, BPF, performance counters, io_uring, and what only root may do anyway. Everything else is allowed. Numbers are the kernel's
(`include/uapi/asm-generic/unistd.h`, `arch/x86/entry/syscalls/syscall_64.tbl`).
"""

import errno
import platform
import struct
from typing import Final

from msgspec import Struct

LOAD: Final = 0x20
IF_EQUAL: Final = 0x15
IF_AT_LEAST: Final = 0x35
IF_SET: Final = 0x45
RETURN: Final = 0x06
NUMBER_AT: Final = 0
ARCHITECTURE_AT: Final = 4
FIRST_ARGUMENT_AT: Final = 16
ALLOW: Final = 0x7FFF0000
REFUSE: Final = 0x00050000
NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make namespaces."""
X32: Final = 0x40000000
"""The numbers of another ABI of x86-64 begin here."""
CLONE3: Final = 435
"""Its flags lie in memory, which a filter cannot read. Programs that are told that there is none use `clone`."""
ON_ALL: Final = (*range(425, 434), 442)
"""io_uring_setup, _enter, _register; open_tree, move_mount, fsopen, fsconfig, fsmount, fspick; mount_setattr."""


class Machine(Struct, frozen=True):
    """The numbers of one architecture."""

    architecture: int
    clone: int
    refused: tuple[int, ...]


MACHINES: Final = {
    "x86_64": Machine(
        0xC000003E,
        56,
        # unshare, setns, mount, umount2, pivot_root, add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, open_by_handle_at,
        # kexec_load, kexec_file_load, init_module, finit_module, delete_module, quotactl, swapon, swapoff, reboot, acct, syslog,
        # settimeofday, clock_settime, iopl, ioperm
        (
            272,
            308,
            165,
            166,
            155,
            248,
            249,
            250,
            321,
            298,
            323,
            304,
            246,
            320,
            175,
            313,
            176,
            179,
            167,
            168,
            169,
            163,
            103,
            164,
            227,
            172,
            173,
        ),
    ),
    "aarch64": Machine(
        0xC00000B7,
        220,
        (97, 268, 40, 39, 41, 217, 218, 219, 280, 241, 282, 265, 104, 294, 105, 273, 106, 60, 224, 225, 142, 89, 116, 170, 112),
    ),
}


def system_call_filter() -> bytes | None:
    """Return the program for this machine. None: its architecture is not known here, and there is no filter."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        return None
    no_such_call, not_permitted = REFUSE | errno.ENOSYS, REFUSE | errno.EPERM
    program = [_step(LOAD, ARCHITECTURE_AT), _step(IF_EQUAL, machine.architecture, 1, 0), _step(RETURN, no_such_call)]
    program += [_step(LOAD, NUMBER_AT), *_returned(IF_AT_LEAST, X32, no_such_call), *_returned(IF_EQUAL, CLONE3, no_such_call)]
    for number in (*machine.refused, *ON_ALL):
        program += _returned(IF_EQUAL, number, not_permitted)
    program += [_step(IF_EQUAL, machine.clone, 0, 3), _step(LOAD, FIRST_ARGUMENT_AT), *_returned(IF_SET, NAMESPACES, not_permitted)]
    return b"".join((*program, _step(RETURN, ALLOW)))


def _returned(condition: int, value: int, result: int) -> list[bytes]:
    """Return steps that end the filter with a result if a condition holds."""
    return [_step(condition, value, 0, 1), _step(RETURN, result)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
