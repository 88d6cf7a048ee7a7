"""Tells errors that come from the files that somebody left from those of the machine that reads or writes them."""

import errno
from typing import Final

OF_FILES: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENODEV,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
    }
)
"""What names, kinds, permissions and links of files lead to, on any machine."""


def is_of_files(cause: OSError) -> bool:
    """Return whether an error comes from what the files are. Any other is the machine's: a full or broken disk, used-up descriptors."""
    return cause.errno in OF_FILES
