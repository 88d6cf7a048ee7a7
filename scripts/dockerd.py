"""Starts a Docker daemon on this machine with data of its own and an image of this machine's files: for tests, without a registry.

`run` stays in the foreground and prints the daemon's address when it answers and has the image `evener-base`; the daemon ends with it,
its containers too. Needs root, and Docker (`apt install docker.io`). The image has a shell, the usual tools, Git and Python, from packages
that are installed here (Debian, Ubuntu), so nothing is fetched. There is no bridge: sandboxes need none.
"""

import argparse
import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

IMAGE: Final = "evener-base"
START_SECONDS: Final = 60.0
PR_SET_PDEATHSIG: Final = 1
PACKAGES: Final = (
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "findutils", "git", "grep", "libacl1", "libattr1", "libbz2-1.0"),
    *("libc-bin", "libc6", "libcap2", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "libgmp10", "liblzma5", "libncursesw6"),
    *("libpcre2-8-0", "libreadline8", "libreadline8t64", "libselinux1", "libsqlite3-0", "libssl3", "libssl3t64", "libstdc++6"),
    *("libtinfo6", "libuuid1", "mawk", "python3", "python3-minimal", "libpython3-stdlib", "python3.11", "python3.11-minimal"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "python3.12", "python3.12-minimal", "libpython3.12-minimal"),
    *("libpython3.12-stdlib", "sed", "tar", "util-linux", "zlib1g"),
)
"""Those that are not installed are left out."""
MERGED: Final = ("bin", "lib", "lib64", "sbin")
LINKS: Final = {**{folder: f"usr/{folder}" for folder in MERGED}, "usr/bin/awk": "mawk"}
"""Link to its target. Tests of tasks use awk, which is a link that no package lists."""
FOLDERS: Final = (
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/sbin",
    "/tmp",  # noqa: S108 - of the image
    "/etc",
    "/etc/ld.so.cache",
    "/etc/passwd",
    "/etc/group",
)
NOT_NEEDED: Final = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")


def base_image() -> bytes:
    """Return a root file system as a tar."""
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], capture_output=True, text=True, check=False).stdout.splitlines()
    names = {name for name in listed if name.startswith("/") and name != "/." and not name.startswith(NOT_NEEDED)}
    names |= {str(path) for name in names if name.endswith(".py") for path in compiled(Path(name))}
    buffer, seen = io.BytesIO(), set(LINKS)
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for link, target in LINKS.items():
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
        for name in [*FOLDERS, *sorted(names)]:
            path = f"/usr{name}" if name.split("/")[1] in MERGED else name
            if path[1:] not in seen and os.path.lexists(path):
                seen.add(path[1:])
                tar.add(path, arcname=path[1:], recursive=False)
    return buffer.getvalue()


def compiled(module: Path) -> Iterator[Path]:
    """Yield a module's bytecode with its folder. It is made when a package is installed, and no package lists it."""
    for path in (module.parent / "__pycache__").glob(f"{module.stem}.cpython-*.pyc"):
        yield from (path.parent, path)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def daemon() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a daemon with the image; yield its process and its address. It dies with this process, however that ends."""
    folder = Path(tempfile.mkdtemp(prefix="evener-dockerd-"))
    address = f"unix://{folder}/docker.sock"
    where = ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"), "--host", address]
    log = folder / "dockerd.log"
    with log.open("wb") as out:
        command = ["dockerd", *where, "--bridge=none", "--iptables=false"]
        process = subprocess.Popen(command, stdout=out, stderr=out, preexec_fn=die_with_parent, start_new_session=True)  # noqa: PLW1509
    try:
        wait_until_it_answers(process, address, log)
        subprocess.run(["docker", "--host", address, "import", "-", IMAGE], input=base_image(), stdout=subprocess.DEVNULL, check=True)
        yield process, address
    finally:
        left = subprocess.run(["docker", "--host", address, "ps", "--all", "--quiet"], capture_output=True, text=True, check=False)
        if left.stdout.split():
            subprocess.run(["docker", "--host", address, "rm", "--force", *left.stdout.split()], stdout=subprocess.DEVNULL, check=False)
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Return when the daemon answers; exit with its last words if it ends before that."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if subprocess.run(["docker", "--host", address, "version"], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    fail(f"the Docker daemon did not start:\n{log.read_text()[-2000:]}")


def run(*, with_parent: bool) -> None:
    """Run a daemon in the foreground until it or this process is ended."""
    parent = os.getppid()
    if with_parent:
        die_with_parent()
        if os.getppid() != parent:
            return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with daemon() as (process, address):
        print(address, flush=True)
        process.wait()


def fail(why: str) -> NoReturn:
    """End with a message."""
    print(why, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["run"])
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    run(with_parent=parser.parse_args().with_parent)
