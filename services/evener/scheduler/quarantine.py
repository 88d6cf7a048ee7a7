"""Keeps sessions from runners that lose them: a runner whose machine is at fault fails at once, and therefore is always free.

A runner that loses the sandboxes of several sessions in a row gets none for a while. Then it gets one at a time, until one of them has run;
if that one is lost too, the next pause is twice as long. All times are of one monotonic clock of this process.
"""

from collections.abc import Iterable
from typing import Final

import structlog
from msgspec import Struct, structs

from evener.proto.fleet import Heartbeat
from evener.proto.reasons import END_POLICY, TerminationReason
from evener.runtime.backoff import Backoff
from evener.scheduler.core import EndedAttempt

LONGEST_QUARANTINE_SECONDS: Final = 900.0
"""The longest pause of a runner."""
MACHINE_FAULTS: Final = frozenset({TerminationReason.SANDBOX_LOST})
"""Reasons that speak against the runner's machine: it could not make the sandbox, fetch what the session needs, or keep what it left."""

log = structlog.get_logger()


class Losses(Struct):
    """The sessions that a runner's process has lost in a row."""

    boot_id: str
    sessions: set[str]
    """The sessions that it lost since it last ran one."""
    pauses: int = 0
    """The number of pauses since then."""
    until: float = 0.0
    """The end of the last pause."""


class Quarantine:
    """The runners that get no sessions, or one at a time."""

    def __init__(self, *, losses: int, seconds: float) -> None:
        """`losses`: how many sessions a runner loses in a row before the first pause, which is `seconds` long."""
        self._most = losses
        self._pause = Backoff(seconds, max(seconds, LONGEST_QUARANTINE_SECONDS))
        self._runners: dict[str, Losses] = {}

    def read(self, ended: Iterable[EndedAttempt], runners: Iterable[Heartbeat], *, now: float) -> None:
        """Apply attempts that have ended. `runners` are alive. A runner that was started again is given a new chance."""
        boots = {beat.instance_id: beat.boot_id for beat in runners}
        for runner_id in [name for name, found in self._runners.items() if boots.get(name, found.boot_id) != found.boot_id]:
            del self._runners[runner_id]
        for attempt in ended:
            if attempt.reason in MACHINE_FAULTS:
                found = self._runners.setdefault(attempt.runner_id, Losses(boot_id=boots.get(attempt.runner_id, ""), sessions=set()))
                self._lost(attempt, found, now)
            elif attempt.reason in END_POLICY and END_POLICY[TerminationReason(attempt.reason)].grade:
                self._ran(attempt.runner_id, now)

    def limited(self, runners: Iterable[Heartbeat], *, now: float) -> list[Heartbeat]:
        """Return the runners with the capacity that they may use: none in a pause, and one after it until it has run a session."""
        return [self._limited(beat, now) for beat in runners]

    def seconds_left(self, runner_id: str, *, now: float) -> float | None:
        """Return how long a runner still gets nothing. 0: it gets one session at a time. None: it is not quarantined."""
        found = self._runners.get(runner_id)
        return None if found is None or not found.pauses else max(0.0, found.until - now)

    def count(self) -> int:
        """Return the number of quarantined runners."""
        return sum(1 for found in self._runners.values() if found.pauses)

    def _limited(self, beat: Heartbeat, now: float) -> Heartbeat:
        left = self.seconds_left(beat.instance_id, now=now)
        return beat if left is None else structs.replace(beat, capacity=0 if left else min(1, beat.capacity))

    def _lost(self, attempt: EndedAttempt, found: Losses, now: float) -> None:
        found.sessions.add(attempt.session_id)
        if now < found.until or len(found.sessions) < self._most:  # of a pause's losses, the sessions were dispatched before it
            return
        found.pauses += 1
        seconds = self._pause.seconds(found.pauses)
        found.until = now + seconds
        log.warning(
            "runner_quarantined", runner_id=attempt.runner_id, lost_in_a_row=len(found.sessions), seconds=seconds, last=attempt.detail
        )

    def _ran(self, runner_id: str, now: float) -> None:
        found = self._runners.get(runner_id)
        if found is None or now < found.until:  # in a pause, the session began before it
            return
        del self._runners[runner_id]
        if found.pauses:
            log.info("runner_trusted_again", runner_id=runner_id)
