"""How this process allocates memory."""

import ctypes
from typing import Final

M_ARENA_MAX: Final = -8
"""glibc's `mallopt` parameter, of malloc.h."""


def share_one_arena() -> bool:
    """Let all threads allocate from one arena. Returns whether the C library can do that, as glibc can.

    Call it before a thread starts: NumPy starts one when it is imported. By default each thread gets an arena of its own. Prompts are
    rendered and encoded in many threads and kept by the sessions, so that each arena stays large for the little that remains in it: an open
    call cost 106 to 178 KiB that way, and costs 62 to 78 KiB in one arena.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_ARENA_MAX, 1))
