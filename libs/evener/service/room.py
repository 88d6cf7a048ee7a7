"""Whether a disk is full: many errors of a full one do not say so."""

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Final

NO_ROOM_BYTES: Final = 64 * 1024
PRIMARY_CODE: Final = 0xFF
"""The part of an extended SQLite error code that says its kind."""


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder, which may be missing, has no room left."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free < NO_ROOM_BYTES


def says_full(cause: OSError | sqlite3.Error, folder: Path) -> bool:
    """Return whether an error of writing in a folder means that its disk is full."""
    if isinstance(cause, OSError):
        return cause.errno == errno.ENOSPC
    match getattr(cause, "sqlite_errorcode", 0) & PRIMARY_CODE:
        case sqlite3.SQLITE_FULL:
            return True
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
            return is_full(folder)
        case _:
            return False
