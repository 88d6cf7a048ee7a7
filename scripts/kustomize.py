"""Finds kustomize, or builds it: from its Go module, once, into the user's cache folder. `python scripts/kustomize.py` prints its path."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

MODULE: Final = "sigs.k8s.io/kustomize/kustomize/v5"
VERSION: Final = "v5.7.1"


class KustomizeMissing(Exception):
    """Install kustomize, or Go, which builds it."""


def kustomize() -> str:
    """Return the path of the program. Raises KustomizeMissing."""
    if found := shutil.which("kustomize"):
        return found
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "evener" / f"kustomize-{VERSION}"
    program = folder / "kustomize"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(folder)
    return str(program)


def _build(folder: Path) -> None:
    if shutil.which("go") is None:
        msg = "neither kustomize nor Go is in PATH"
        raise KustomizeMissing(msg)
    environ = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
    done = subprocess.run(["go", "install", f"{MODULE}@{VERSION}"], env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"go did not build kustomize: {done.stderr[-1000:]}"
        raise KustomizeMissing(msg)


if __name__ == "__main__":
    print(kustomize())
