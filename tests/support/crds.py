"""Schemas of kinds that operators bring to Kubernetes, from the operators' Go modules."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml


class CrdMissing(Exception):
    """Install Go, and let it reach its module proxy."""


def schema(module: str, path: str, version: str) -> dict[str, Any]:
    """Return the schema of a version of a kind: `module` is PATH@VERSION, `path` the file in it. Raises CrdMissing."""
    if shutil.which("go") is None:
        msg = "Go is not in PATH"
        raise CrdMissing(msg)
    with tempfile.TemporaryDirectory() as folder:  # no module of ours is looked for
        done = subprocess.run(["go", "mod", "download", "-json", module], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{module} was not fetched: {done.stdout[-500:]}{done.stderr[-500:]}"
        raise CrdMissing(msg)
    described = yaml.safe_load((Path(json.loads(done.stdout)["Dir"]) / path).read_text())
    found: dict[str, Any] = next(one for one in described["spec"]["versions"] if one["name"] == version)["schema"]["openAPIV3Schema"]
    return found
