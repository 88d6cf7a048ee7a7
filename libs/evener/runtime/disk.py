"""Determines whether a disk is full, which many errors of a full disk do not say."""

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Final

NO_ROOM_BYTES: Final = 64 * 1024
PRIMARY_CODE: Final = 0xFF
"""The part of an extended SQLite error code that gives its kind."""


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder, which may be missing, has no free space."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free < NO_ROOM_BYTES


def says_full(cause: OSError | sqlite3.Error, folder: Path) -> bool:
    """Return whether an error while writing in a folder means that its disk is full."""
    if isinstance(cause, OSError):
        return cause.errno == errno.ENOSPC
    match getattr(cause, "sqlite_errorcode", 0) & PRIMARY_CODE:
        case sqlite3.SQLITE_FULL:
            return True
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
            return is_full(folder)
        case _:
            return False
