"""Sets closed sandboxes aside at once and removes them in the background, so that no tree of files delays a start, a close or a grading."""

import asyncio
import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Final

import structlog

from evener.sandboxes.folders import Deadline, OutOfTime, opened, own, remove
from evener.sandboxes.work import FileWork

ASIDE: Final = ".removed"
"""The folder below the backend's root for former sandboxes that await removal."""
REMOVAL_SECONDS: Final = 600.0
"""A folder whose removal takes longer is left for the next start."""

log = structlog.get_logger()


class Removal:
    """Removes folders of one backend. What cannot be removed stays in `<root>/.removed`, is logged, and is retried at the next start."""

    def __init__(self, root: Path, work: FileWork) -> None:
        self._root = root
        self._work = work

    async def take(self, name: str) -> asyncio.Future[None]:
        """Set the folder `<root>/<name>` aside. The future is done when it is removed or given up. Raises OSError."""
        aside = await self._work.files.begin(put_aside, self._root, name)
        return self._remove(aside)

    async def take_all(self) -> asyncio.Future[Any]:
        """Set all folders below the root aside and remove them, with those that were set aside before. Raises OSError."""
        names = await self._work.files.begin(put_all_aside, self._root)
        return asyncio.gather(*(self._remove(name) for name in names), return_exceptions=True)

    def _remove(self, name: str) -> asyncio.Future[None]:
        removal = self._work.removals.begin(self._try, name)
        removal.add_done_callback(_seen)
        return removal

    def _try(self, name: str) -> None:
        """Remove a folder that was set aside, or log that it stays and how to remove it."""
        folder = self._root / ASIDE / name
        try:
            with opened(folder.parent) as aside:
                remove(name, aside, Deadline(REMOVAL_SECONDS, self._work.called_off))
        except FileNotFoundError:
            return
        except OutOfTime:
            if not self._work.called_off.is_set():
                log.warning(
                    "sandbox_not_removed",
                    folder=str(folder),
                    error=f"not done within {REMOVAL_SECONDS:g} s",
                    mend="the next start continues",
                )
        except OSError as cause:
            mend = "unmount what is mounted in it, take `chattr -i` from its files, or remove it as their owner; the next start tries again"
            log.warning("sandbox_not_removed", folder=str(folder), error=str(cause), mend=mend)


def put_aside(root: Path, name: str) -> str:
    """Move a folder out of the way; return its name in `<root>/.removed`. Raises OSError. Blocks."""
    new = f"{name[:200]}.{secrets.token_hex(4)}"
    with opened(root) as folder, opened(_aside(folder), folder) as aside:
        with contextlib.suppress(OSError):
            own(name, folder)
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=aside)
    return new


def put_all_aside(root: Path) -> list[str]:
    """Move all folders out of the way; return all names in `<root>/.removed`. Logs what cannot be moved. Raises OSError. Blocks."""
    with os.scandir(root) as found:
        names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False) and entry.name != ASIDE]
    for name in names:
        try:
            put_aside(root, name)
        except OSError as cause:  # a mount point, or somebody else's
            log.warning("sandbox_not_removed", folder=str(root / name), error=str(cause), mend="unmount it, or remove it as its owner")
    with opened(root) as folder, opened(_aside(folder), folder) as aside:
        return os.listdir(aside)  # noqa: PTH208 - of a descriptor


def _aside(root: int) -> str:
    """Open the folder for files that are set aside. A program of a sandbox may have put anything in its place."""
    try:
        os.mkdir(ASIDE, stat.S_IRWXU, dir_fd=root)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(ASIDE, dir_fd=root, follow_symlinks=False).st_mode):
            os.unlink(ASIDE, dir_fd=root)
            os.mkdir(ASIDE, stat.S_IRWXU, dir_fd=root)
    return ASIDE


def _seen(removal: asyncio.Future[None]) -> None:
    """Log a bug in the removal, which stops nothing else."""
    if not removal.cancelled() and (error := removal.exception()) is not None:
        log.error("sandbox_not_removed", error=repr(error), exc_info=error)
