"""The conditions of a run. `make learn` fails if one of them is missed."""

from collections.abc import Iterator
from typing import Final

from figures import Said
from msgspec import Struct

GAIN: Final = 0.3
"""How much the share of right held-out sessions must rise."""
GAP: Final = 1e-3
"""Natural log."""
SPANNING: Final = 50
HELD_OUT: Final = 64
"""Sessions of an evaluation."""
UNGRADED: Final = 0.05
"""Share of an evaluation's sessions."""


class Bar(Struct, frozen=True, kw_only=True):
    """One condition."""

    name: str
    value: str
    met: bool

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'} {self.name}: {self.value}"


def bars(said: Said, told: Said) -> list[Bar]:
    """Return all conditions for a run and its figures."""
    return [*_gains(told), *_gaps(told), *_context(told), *_groups(told), *_graded(said, told)]


def _gains(told: Said) -> Iterator[Bar]:
    harness = told["second"]["harness"]
    found = {f"{kind}, through Pi": each for kind, each in told["tasks"].items()} | {f"write, through {harness}": told["second"]}
    for name, each in found.items():
        for base in ("before", "control"):
            gained = each["after"] - each[base]
            met = round(gained, 6) >= GAIN
            yield Bar(name=f"{name}: {GAIN} above {base}", value=f"{each['after']:.3f} - {each[base]:.3f} = {gained:.3f}", met=met)


def _gaps(told: Said) -> Iterator[Bar]:
    largest = told["gap_max"]
    value = "not compared at every step" if largest is None else f"{largest:.1e} at most in {told['updates']} updates"
    met = largest is not None and largest <= GAP
    yield Bar(name=f"logprob gap of engine and trainer at every step, at most {GAP}", value=value, met=met)
    scored, sampled, gap = told["tokens_scored_again"], told["tokens_sampled"], told["gap_of_every_token"]
    yield Bar(
        name=f"every sampled token's logprob is that of the weights its version names, to {GAP}",
        value=f"{gap:.1e} at most in {scored} of {sampled} tokens of {told['versions_scored_again']} versions",
        met=scored == sampled > 0 and gap <= GAP,
    )


def _context(told: Said) -> Iterator[Bar]:
    """The checker must have read everything that was trained, and found nothing."""
    read, faults, status = told["trajectories_checked"], told["faults_found_by_the_checker"], told["status_of_the_checker"]
    yield Bar(
        name="no fault found by the independent checker, in all sessions of all groups",
        value=f"{faults} faults in {read} of {told['sessions_in_groups']} sessions, exit status {status}",
        met=faults == 0 and status == 0 and read == told["sessions_in_groups"] > 0,
    )
    trained, checked = told["tokens_trained"], told["tokens_checked"]
    yield Bar(name="every trained token was checked", value=f"{trained} trained, {checked} checked", met=0 < trained == checked)


def _groups(told: Said) -> Iterator[Bar]:
    run, grouped, failed = told["sessions_run"], told["sessions_in_groups"], told["sessions_of_failed_groups"]
    yield Bar(
        name="sessions in the groups = sessions run",
        value=f"{grouped} in groups, {run} run, {failed} of failed groups",
        met=told["every_session_that_ran_in_one_group"] and run > 0,
    )
    once = told["trained_once_and_in_order"]
    yield Bar(name="every group trained once, in the order of the log", value="yes" if once else "no", met=once)
    spans = told["spanning_two_versions"]
    yield Bar(name=f"at least {SPANNING} trained answers that span two versions", value=str(spans), met=spans >= SPANNING)


def _graded(said: Said, told: Said) -> Iterator[Bar]:
    asked = told["held_out_sessions"]
    yield Bar(name=f"at least {HELD_OUT} sessions in each evaluation", value=str(asked), met=asked >= HELD_OUT)
    worst = max(said["held_out"], key=lambda name: said["held_out"][name]["ungraded"])
    ungraded, sessions = said["held_out"][worst]["ungraded"], said["held_out"][worst]["sessions"]
    yield Bar(
        name=f"at most {UNGRADED:.0%} of an evaluation's sessions without a grade",
        value=f"{ungraded} of {sessions} ({worst})",
        met=ungraded <= UNGRADED * sessions,
    )
