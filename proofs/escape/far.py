"""A network of the proof's own, in which addresses that are far away lead to this machine: attempts at them are real and reach nobody."""

import os
import subprocess
import sys
from typing import Final

INTERNET: Final = "198.51.100.7"
"""An address that nobody has, which the proxy takes for one of the internet."""
METADATA: Final = "169.254.169.254"
INSIDE: Final = "EVENER_ESCAPE_NETWORK"
COMMAND: Final = f'ip link set lo up && ip addr add {INTERNET}/32 dev lo && ip addr add {METADATA}/32 dev lo && exec "$@"'


def is_own() -> bool:
    """Return whether this process has such a network."""
    return INSIDE in os.environ


def enter() -> None:
    """Start this program again in such a network. Needs root, `unshare` and `ip`."""
    words = [sys.executable, "-m", "proofs.escape", *sys.argv[1:]]
    done = subprocess.run(["unshare", "--net", "sh", "-c", COMMAND, "sh", *words], env={**os.environ, INSIDE: "1"}, check=False)
    sys.exit(done.returncode)
