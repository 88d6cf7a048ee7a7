"""The scheduler in simulated time: its own code decides and encodes, and the CPU that this takes here is the time that it takes there."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from proofs.scaling.clock import Clock

from evener.proto.codec import decode, encode
from evener.proto.fleet import Heartbeat, RunnerLeases, Running
from evener.proto.sessions import SessionDispatched
from evener.proto.state import TaskState
from evener.scheduler.admission import admit
from evener.scheduler.core import Draft
from evener.scheduler.fleet import Leases
from evener.scheduler.inbox import TRANSACTION_ITEMS
from evener.scheduler.open_tasks import OpenTasks

RECORD_SECONDS: Final = 40e-6
"""CPU of handing one record to the Kafka client, beside its encoding (`make bench-bus`: an append of 2 KB, encoded, takes 27 us)."""
READ_SECONDS: Final = 20e-6
"""CPU of reading and decoding one record."""
STEP_SECONDS: Final = 1.2e-3
"""CPU of one transaction, whatever it holds (`make bench-bus`: commits one by one)."""
LEASE_SECONDS: Final = 10.0
BEAT_SECONDS: Final = 2.0
BEATS_TRIED: Final = 200

Item = Callable[[Draft], object]


class SchedulerModel:
    """One active scheduler."""

    def __init__(
        self, clock: Clock, runners: Sequence[Heartbeat], *, commit_seconds: float, dispatched: Callable[[SessionDispatched], None]
    ) -> None:
        """`dispatched` is called when the commit of a dispatch is through."""
        self.tasks: dict[str, TaskState] = {}
        self.busy_seconds = 0.0
        self.waits: list[float] = []
        """How long each item waited until its commit was through, in simulated seconds."""
        self.beat_share = 0.0
        """The share of a core that heartbeats cost."""
        self._clock = clock
        self._runners = runners
        self._commit_seconds = commit_seconds
        self._dispatched = dispatched
        self._open = OpenTasks()
        self._inbox: list[tuple[float, Item]] = []
        self._working = False
        self.beat_share = beats_share(runners)

    def put(self, item: Item) -> None:
        """Give the scheduler something to read or to do."""
        self._inbox.append((self._clock.now, item))
        if not self._working:
            self._working = True
            self._clock.after(0.0, self._step)

    def _step(self) -> None:
        items, self._inbox = self._inbox[:TRANSACTION_ITEMS], self._inbox[TRANSACTION_ITEMS:]
        began = time.thread_time()
        draft = Draft(self.tasks, now=self._clock.now)
        for _, item in items:
            item(draft)
        self._open.update(draft.changed.values())
        admit(draft, self._open, self._runners, now=self._clock.now, lease_seconds=LEASE_SECONDS)
        for write in draft.writes:
            encode(write.event)
        for state in draft.changed.values():
            encode(state)
        self.tasks.update(draft.changed)
        records = len(draft.writes) + len(draft.changed)
        cpu = time.thread_time() - began + STEP_SECONDS + RECORD_SECONDS * records + READ_SECONDS * len(items)
        self.busy_seconds += cpu
        self._clock.after(cpu / (1 - self.beat_share) + self._commit_seconds, lambda: self._committed(items, draft))

    def _committed(self, items: Sequence[tuple[float, Item]], draft: Draft) -> None:
        self.waits += [self._clock.now - at for at, _ in items]
        for write in draft.writes:
            if isinstance(write.event, SessionDispatched):
                self._dispatched(write.event)
        if self._inbox:
            self._step()
        else:
            self._working = False


def beats_share(runners: Sequence[Heartbeat]) -> float:
    """Return the share of a core that it costs to read the heartbeats of full runners and what they hold, and to renew their leases."""
    held = tuple(Running(session_id=f"run-0.task-{number}.3", attempt=1) for number in range(runners[0].capacity))
    beat, listed = encode(runners[0]), encode(RunnerLeases(runner_id=runners[0].instance_id, running=held, at=0.0))
    leases = Leases(seconds=LEASE_SECONDS, began_at=0.0)
    began = time.thread_time()
    for number in range(BEATS_TRIED):
        decode(beat)
        event = decode(listed)
        assert isinstance(event, RunnerLeases)
        leases.sign(event.running, now=number)
    each = (time.thread_time() - began) / BEATS_TRIED + 2 * READ_SECONDS
    return each * len(runners) / BEAT_SECONDS


def ends(tasks: Mapping[str, TaskState]) -> int:
    """Return how many tasks have ended."""
    return sum(task.outcome is not None for task in tasks.values())
