"""How many files and connections this process may have open."""

import errno
import resource
from contextlib import suppress
from typing import Final

MAX_OPEN_FILES: Final = 1 << 16
"""More than any service needs. Programs that a service starts inherit the limit, and some close every number below it one by one."""
USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})


def allow_open_files() -> None:
    """Raise the soft limit, which is often 1,024, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems take less than their hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def lacked_files(error: BaseException) -> bool:
    """Return whether something failed because this process, or its machine, could open no further file or connection."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in USED_UP:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
