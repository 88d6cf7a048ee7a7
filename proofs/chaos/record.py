"""The record of all arms: outputs/chaos.json, to which each arm adds when it has ended, with the commit that it ran at."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from proofs.chaos.campaign import CampaignResult
from proofs.chaos.storms import Outcome
from proofs.figures import OUTPUTS, report

TARGET: Final = "chaos"
PATH: Final = OUTPUTS / f"{TARGET}.json"
EMPTY: Final[Mapping[str, bool]] = {}


class ArmRun(Struct, frozen=True, kw_only=True):
    """An arm that ran, with what it left: one of the three."""

    arm: str
    commit: str
    ended_at: float
    """Unix seconds."""
    load: tuple[float, float, float]
    """The machine's load averages over the last 1, 5 and 15 minutes at its end."""
    struck: CampaignResult | None = None
    storms: tuple[Outcome, ...] = ()
    planted: dict[str, bool] = {}
    """Whether the audit caught each planted fault."""

    @property
    def breaches(self) -> list[str]:
        """What the audits found."""
        return [*(self.struck.breaches if self.struck else ()), *(fault for storm in self.storms for fault in storm.faults)]

    @property
    def sound(self) -> bool:
        """Whether no audit found a breach, or did not find a planted fault."""
        return not self.breaches and all(self.planted.values())


def forget() -> None:
    """Begin a new record."""
    PATH.unlink(missing_ok=True)


def runs() -> list[ArmRun]:
    """Return the arms that ran so far."""
    return msgspec.convert(json.loads(PATH.read_text())["runs"], list[ArmRun]) if PATH.exists() else []


def hits(arm: str) -> Counter[str]:
    """Return the hits of an arm by kind."""
    return _total(run.struck for run in runs() if run.arm == arm and run.struck)


def add(arm: str, struck: CampaignResult | None = None, storms: Sequence[Outcome] = (), planted: Mapping[str, bool] = EMPTY) -> ArmRun:
    """Add an arm that has just ended, and show all."""
    run = ArmRun(
        arm=arm, commit=_commit(), ended_at=time.time(), load=os.getloadavg(), struck=struck, storms=tuple(storms), planted=dict(planted)
    )
    write([*runs(), run])
    return run


def write(known: Sequence[ArmRun]) -> None:
    """Write the figures of these runs, and show them."""
    campaigns = [run.struck for run in known if run.struck]
    report(
        TARGET,
        "Faults, and what the audit found",
        [_row(run) for run in known],
        sessions=sum(struck.sessions for struck in campaigns),
        faults=dict(_total(campaigns)),
        lost=sum(struck.lost for struck in campaigns),
        doubled=sum(struck.doubled for struck in campaigns),
        ours_graded=sum(struck.ours_graded for struck in campaigns),
        planted={name: caught for run in known for name, caught in run.planted.items()},
        runs=msgspec.to_builtins(known),
    )


def _total(campaigns: Iterable[CampaignResult]) -> Counter[str]:
    """Return the hits by kind; a kind that struck and never hit has 0."""
    total = Counter[str]()
    for struck in campaigns:
        total.update(struck.faults)
    return total


def _row(run: ArmRun) -> dict[str, str | float | int | None]:
    struck = run.struck
    return {
        "arm": run.arm,
        "commit": run.commit,
        "sessions": struck.sessions if struck else None,
        "attempts": struck.attempts if struck else sum(storm.starts for storm in run.storms) or None,
        "strikes": sum(struck.struck.values()) if struck else sum(storm.kills for storm in run.storms) or None,
        "hits": sum(struck.faults.values()) if struck else None,
        "fewest_hits": min(struck.faults.values()) if struck else None,
        "breaches": len(run.breaches),
        "seconds": struck.seconds if struck else sum(storm.seconds for storm in run.storms) or None,
        "load": run.load[1],
    }


def _commit() -> str:
    """Return the commit of the tree, marked if the tree has changed since."""
    words = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
