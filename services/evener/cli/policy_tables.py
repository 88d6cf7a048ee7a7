"""Reads the input of `evener policy`, and shows its output."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from evener.cli.errors import Usage
from evener.cli.output import console, table, tell, tell_each
from evener.client.views import PolicyView, VersionView
from evener.proto.fleet import Canary

_canaries: Final = msgspec.json.Decoder(Canary)


def read_canary(file: Path) -> Canary:
    """Return the canary in a JSON file. Raises Usage."""
    try:
        return _canaries.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as cause:
        msg = f"canary {file}: {cause}"
        raise Usage(msg) from cause


def show_policies(policies: Sequence[PolicyView]) -> None:
    """Write a table on a terminal, otherwise JSON lines."""
    out = console()
    if not out.is_terminal:
        for policy in policies:
            tell({"policy": policy.policy, "newest": policy.newest, "engines": policy.engines})
        return
    shown = table("policy", "newest", "engines")
    for policy in policies:
        shown.add_row(policy.policy, "-" if policy.newest is None else str(policy.newest), ", ".join(policy.engines) or "none")
    out.print(shown)


def show_policy(policy: PolicyView) -> None:
    """Write a table on a terminal, otherwise JSON lines."""
    out = console()
    if out.is_terminal:
        out.print(f"{policy.policy}: engines {', '.join(policy.engines) or 'none'}")
    tell_each(policy.versions, ("version", "state", "when", "gap", "where, or why not"), _row)


def _row(version: VersionView) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(version.at))
    gap = "" if version.gap is None else f"{version.gap:.1e}"
    return str(version.version), version.state, when, gap, version.reason or version.location
