"""`python -m proofs.compose [--registry none]`: the compose file under real Docker; figures to outputs/compose-check.json.

Everything becomes healthy, the demo's tasks run and are merged, gateways share the partitions, Prometheus finds every instance, and nothing
is left. It fails where it cannot be done, and says why.
"""

import argparse
import json
import sys
import time
from typing import Any, Final

from proofs.compose.docker import daemon, run
from proofs.compose.errors import CannotCheck, Wrong
from proofs.compose.stack import Container, Stack, default_cache, draw_secrets, until
from proofs.compose.stand_ins import BASE, STAND_INS, build_ours, build_stand_ins
from proofs.figures import report

from evener.cli.up import SERVICES

GATEWAYS: Final = 3
GATEWAY: Final = "provider_gateway"
PARTITIONS: Final = 64
DEMO: Final = ("run", "--rm", "cli", "demo", "--samples", "2", "--out", "/tmp/demo")  # noqa: S108 - in the container


def check(*, registry: bool) -> dict[str, Any]:
    """Run it all; return the figures. Raises CannotCheck, Wrong."""
    began = time.monotonic()
    if not registry:
        build_stand_ins()
    build_ours(None if registry else BASE)
    draw_secrets()
    built = time.monotonic()
    stack = Stack({} if registry else STAND_INS)
    try:
        stack.compose("up", "--detach")
        _confined(stack.until_well())
        healthy = time.monotonic()
        first = _demo(stack)
        stack.compose("up", "--detach", "--scale", f"provider-gateway={GATEWAYS}", "provider-gateway")
        shares = until("the gateways share the partitions", lambda: _shares(stack))
        second = _demo(stack)
        stack.compose("up", "--detach", "--scale", f"provider-gateway={GATEWAYS}", "prometheus")
        instances = until("Prometheus finds every instance", lambda: _scraped(stack))
    except (CannotCheck, Wrong) as wrong:
        sys.stderr.write(stack.logs())
        raise type(wrong)(str(wrong)) from wrong
    finally:
        stack.remove()
    if stack.containers():
        msg = "containers are left after down"
        raise Wrong(msg)
    return {
        "registry": registry,
        "image_mb": {target: _megabytes(f"evener:{target}") for target in ("services", "full")},
        "groups": {"submitted": first["submitted"] + second["submitted"], "merged": first["merged"] + second["merged"]},
        "partitions_of_gateways": shares,
        "scraped_instances": instances,
        "seconds": {
            "build the images": round(built - began),
            "start until all are healthy": round(healthy - built),
            "all": round(time.monotonic() - began),
        },
    }


def _confined(containers: list[Container]) -> None:
    """Raise Wrong unless every service runs, as a user without rights, on a file system that it cannot change."""
    ours = {one.service.replace("-", "_"): one for one in containers if one.service.replace("-", "_") in SERVICES}
    if set(ours) != set(SERVICES):
        msg = f"only these services run: {', '.join(sorted(ours))}"
        raise Wrong(msg)
    for name, one in ours.items():
        if one.user != "10001:10001" or not one.read_only:
            msg = f"{name} runs as {one.user or 'root'}, read-only: {one.read_only}"
            raise Wrong(msg)


def _demo(stack: Stack) -> dict[str, int]:
    """Run the demo in the network; return how many groups were submitted and merged."""
    summary = json.loads(stack.compose(*DEMO).strip().splitlines()[-1])
    groups: dict[str, int] = summary["groups"]
    if groups["merged"] != groups["submitted"]:
        msg = f"groups: {groups}"
        raise Wrong(msg)
    return groups


def _shares(stack: Stack) -> list[int] | None:
    """Return how many partitions each gateway serves, once all are served by one and every gateway has some."""
    served = [one["partitions"] for one in stack.fleet() if one["service"] == GATEWAY and one["alive"]]
    numbers = sorted(number for partitions in served for number in partitions)
    complete = len(served) == GATEWAYS and all(served) and numbers == list(range(PARTITIONS))
    return sorted(map(len, served)) if complete else None


def _scraped(stack: Stack) -> int | None:
    expected = len(SERVICES) - 1 + GATEWAYS
    return expected if stack.query('count(up{job="evener"} == 1)') == expected and stack.query("max(evener_fleet_slots)") else None


def _megabytes(image: str) -> int:
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image)) // 10**6


def main() -> int:
    """Return the exit code: 0, or 1 with one line that says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--registry", choices=["any", "none"], default="any", help="none: stand-ins for the images of others")
    given = parser.parse_args()
    try:
        with daemon(default_cache()):
            figures = check(registry=given.registry == "any")
    except (CannotCheck, Wrong) as wrong:
        sys.stderr.write(f"{type(wrong).__name__}: {wrong}\n")
        return 1
    steps = figures.pop("seconds")
    report(
        "compose-check", "The compose file under Docker", [{"step": step, "seconds": seconds} for step, seconds in steps.items()], **figures
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
