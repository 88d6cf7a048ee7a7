"""Groups for trainers: `async for group in Groups(client)`, or directly from Kafka, from the position in the trainer's checkpoint.

    groups = Groups(client, start=checkpoint.get("position"))
    async for group in groups:
        ...                                        # train; then save `groups.position` together with the weights

Each group comes once, in the order of its partition of the log. A trainer that begins at a saved position gets exactly what came after it.
So a trainer that keeps the position in its checkpoint trains every group exactly once, whatever dies in between.

Groups that failed, or that a rule of their run dropped, are not yielded: they are counted in `groups.failed` and `groups.dropped`, and
passed to `on_failed`, which logs them by default. Records that cannot be read are logged, and counted in `groups.unread`. The groups of one
run (`run_id`) end when the run is over; if none of them was delivered, with NoGroupDelivered.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.bus.kafka_security import PLAINTEXT, KafkaSecurity
from evener.client.client import MAX_REOPENINGS, Client
from evener.client.errors import ClientError, Unavailable, Unreachable
from evener.client.run_end import TaskEnd, check_delivered, until_over
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.delivered import Delivered, GroupPosition
from evener.proto.trajectories import Flag, GroupFailed, GroupMerged, Row

KAFKA_SCHEME: Final = "kafka://"

log = logging.getLogger(__name__)

PartitionOffsets = dict[str, int]
"""Partition to the offset of its next group. It can be stored as JSON."""


class RowArrays(Struct, frozen=True, kw_only=True, eq=False):
    """A row: T tokens, five read-only arrays of length T."""

    ids: NDArray[np.int32]
    """The whole context, prompt included."""
    loss_mask: NDArray[np.uint8]
    """1: the policy sampled the token, it is to be trained, and no other row trains it."""
    logprobs: NDArray[np.float32]
    """The natural logarithm of each sampled token's probability, under the distribution it was sampled from. NaN: not sampled."""
    versions: NDArray[np.int32]
    """The policy version that sampled the token. -1: not sampled."""
    call_of: NDArray[np.int32]
    """The index in `event.calls` of the call that sampled the token. -1: not sampled."""
    event: Row
    """The row as the log has it, with everything that is known about it."""


class Session(Struct, frozen=True, kw_only=True, eq=False):
    """A delivered session. Count it once, however many rows it has."""

    session_id: str
    reward: float
    rewards: dict[str, float]
    """All numbers that the grader named."""
    flags: tuple[Flag, ...] = ()
    """Signs of reward hacking, with the evidence. If the task fails such sessions, `reward` says so already."""
    rows: tuple[RowArrays, ...]
    """The rows; empty if nothing of the session is to be trained. The session counts for the group's mean all the same."""


class Group(Struct, frozen=True, kw_only=True, eq=False):
    """The whole group of one task."""

    group_id: str
    task_id: str
    run_id: str
    policy: str
    sessions: tuple[Session, ...]
    """The delivered sessions. `event.members` names the others with the reason."""
    partition: int
    offset: int
    """The offset of the group in `trajectories.merged`."""
    event: GroupMerged

    @property
    def rows(self) -> Iterator[RowArrays]:
        """The rows of all sessions."""
        return (row for session in self.sessions for row in session.rows)


def log_failed(event: GroupFailed) -> None:
    """Log a warning, so that a trainer which waits for a group shows why none comes."""
    log.warning("group %s %s: %s", event.group_id, "failed" if event.dropped_by is None else "was dropped", event.reason)


def log_empty(event: GroupMerged) -> None:
    """Log a warning for a group whose rewards come without a token to train."""
    if not event.accounting.delivered:
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in event.accounting.excluded.items())
        log.warning("group %s has no token to train: %s", event.group_id, reasons or "none was sampled")


def log_unread(position: GroupPosition) -> None:
    """Log an error: a group is missing from what this iterator yields."""
    log.error(
        "partition %s, offset %s of the groups cannot be read and was skipped; once it is repaired: %s",
        position.partition,
        position.offset,
        position.replay,
    )


class Groups:
    """The groups of purpose `train` as they are delivered: those of one run until it is over, otherwise for ever.

    A broken connection is opened again where it stopped. Iterate only once at a time. `position` is after the last group taken.
    """

    def __init__(
        self,
        source: Client | str,
        *,
        start: Mapping[str, int] | None = None,
        run_id: str | None = None,
        policy: str | None = None,
        follow: bool | None = None,
        on_failed: Callable[[GroupFailed], object] = log_failed,
        blobs: str = "",
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        """`source`: a client, or `kafka://HOST:PORT[,...][?prefix=NAME]`, with the deployment's blob store in `blobs`.

        `security`: the TLS and the login of connections to Kafka. `start`: a saved `position`; None: the beginning of the log. `run_id`,
        `policy`: yield only groups of this run, of this policy.
        `follow`: True: continue for ever; False: stop at the end of the log; None: with a `run_id`, stop when all submitted tasks of the
        run have ended, otherwise continue for ever. `on_failed`: called for each group that failed or was dropped. Raises ClientError for
        another source.
        """
        if isinstance(source, str) and not source.startswith(KAFKA_SCHEME):
            msg = f"groups come from a client or from {KAFKA_SCHEME}HOST:PORT, not from {source!r}"
            raise ClientError(msg)
        self.failed = 0
        """The number of failed groups that this iterator has passed."""
        self.dropped = 0
        """The number of groups that a rule of their run dropped and this iterator has passed."""
        self.unread = 0
        """The number of records that cannot be read and this iterator has passed, of whatever run. Each is logged as an error."""
        self.position: PartitionOffsets = dict(start or {})
        self._source = source
        self._run_id = run_id
        self._policy = policy
        self._follow = follow
        self._on_failed = on_failed
        self._others: set[str] = set()
        self._blobs = blobs
        self._security = security

    async def __aiter__(self) -> AsyncGenerator[Group, None]:
        """Yield groups. Raises ClientError, BusError; RequestRefused or PositionUnknown for a position of another log.

        Raises NoGroupDelivered at the end of a run that delivered no group.
        """
        if self._run_id is not None and self._follow is None:
            frames = self._until_over(self._run_id)
        else:
            frames = self._frames(follow=self._follow is not False)
        async with aclosing(frames):
            async for frame in frames:
                event, at = frame.group, frame.position
                self.position[str(at.partition)] = at.next_offset
                if event is None:
                    self.unread += 1
                    log_unread(at)
                    continue
                if self._run_id not in {None, event.run_id}:
                    continue
                if self._policy not in {None, event.policy}:
                    self._pass_over(event.policy)
                    continue
                if isinstance(event, GroupMerged):
                    log_empty(event)
                    yield group_of(event, at)
                else:
                    self.failed += event.dropped_by is None
                    self.dropped += event.dropped_by is not None
                    self._on_failed(event)

    def _pass_over(self, policy: str) -> None:
        """Log once per policy that its groups are skipped: a trainer with a misspelt name would wait for ever."""
        if policy not in self._others:
            self._others.add(policy)
            log.warning("skipping groups of policy %s: only those of %s were requested", policy, self._policy)

    async def _until_over(self, run_id: str) -> AsyncGenerator[Delivered, None]:
        """Yield frames until the run is over, then those that its last groups left in the log."""
        over = asyncio.ensure_future(self._over(run_id))
        frames = self._frames(follow=True)
        try:
            while (frame := await _unless(over, frames)) is not None:
                yield frame
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)
            await frames.aclose()
        async with aclosing(self._frames(follow=False)) as rest:
            async for frame in rest:
                yield frame
        check_delivered(run_id, over.result())

    async def _over(self, run_id: str) -> list[TaskEnd]:
        """Wait until the run is over; return its tasks."""
        if not isinstance(self._source, str):
            return await until_over(self._source, run_id)
        from evener.client.groups_kafka import until_over_by_kafka  # noqa: PLC0415 - aiokafka and more, for those alone who use it

        return await until_over_by_kafka(self._source, self._security, self._blobs, run_id)

    def _frames(self, *, follow: bool) -> AsyncGenerator[Delivered, None]:
        """Yield records from the position on. `follow`: for ever, otherwise to the end of the log."""
        if not isinstance(self._source, str):
            return self._from_http(self._source, follow=follow)
        from evener.client.groups_kafka import delivered_by_kafka  # noqa: PLC0415 - aiokafka and more, for those alone who use it

        return delivered_by_kafka(self._source, self._security, self._blobs, self._at(), follow=follow)

    async def _from_http(self, client: Client, *, follow: bool) -> AsyncGenerator[Delivered, None]:
        failures = 0
        while True:
            try:
                async with aclosing(client.delivered(self._at(), follow=follow)) as frames:
                    async for frame in frames:
                        failures = 0
                        yield frame
                if not follow:
                    return
            except (Unreachable, Unavailable):
                failures += 1
                if failures > MAX_REOPENINGS:
                    raise
            await asyncio.sleep(client.reopening.seconds(max(failures, 1)))

    def _at(self) -> dict[int, int]:
        return {int(partition): offset for partition, offset in self.position.items()}


async def _unless(over: asyncio.Future[list[TaskEnd]], frames: AsyncGenerator[Delivered, None]) -> Delivered | None:
    """Return the next frame. None: the run was over before there was one. Raises what either of them raises."""
    coming = asyncio.ensure_future(anext(frames))
    try:
        awaited: set[asyncio.Future[Any]] = {coming, over}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return coming.result()
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    over.result()
    return None


def group_of(event: GroupMerged, position: GroupPosition) -> Group:
    """Return a delivered group with its arrays. Sessions without a reward are not in it."""
    return Group(
        group_id=event.group_id,
        task_id=event.task_id,
        run_id=event.run_id,
        policy=event.policy,
        sessions=tuple(_sessions(event)),
        partition=position.partition,
        offset=position.offset,
        event=event,
    )


def _sessions(event: GroupMerged) -> Iterator[Session]:
    for member in event.members:
        if member.excluded is None and member.scored is not None and member.scored.reward is not None:
            scored = member.scored
            rows = tuple(_row(row) for row in scored.trajectory.rows)
            yield Session(session_id=member.session_id, reward=member.scored.reward, rewards=scored.rewards, flags=scored.flags, rows=rows)


def _row(row: Row) -> RowArrays:
    return RowArrays(
        ids=int32s(row.ids),
        loss_mask=uint8s(row.loss_mask),
        logprobs=float32s(row.logprobs),
        versions=int32s(row.versions),
        call_of=int32s(row.call_of),
        event=row,
    )
