"""Groups for trainers: `async for group in Groups(client)`, or straight from Kafka, from the position of the trainer's checkpoint.

    groups = Groups(client, start=checkpoint.get("position"))
    async for group in groups:
        ...                                        # train; then save `groups.position` together with the weights

Each group comes once, in the order of its partition of the log. Whoever begins at a saved position gets exactly what came after it,
so a trainer that keeps the position in its checkpoint trains every group exactly once, whatever dies in between.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.client.client import AGAIN_SECONDS, MAX_AGAIN, Client
from evener.client.errors import ClientError, Unavailable, Unreachable
from evener.client.views import Delivered
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.codec import decode
from evener.proto.trajectories import GroupMerged
from evener.proto.trajectories import Row as RowEvent

KAFKA: Final = "kafka://"

Position = dict[str, int]
"""Partition to the offset of its next group. Fit for JSON."""


class Row(Struct, frozen=True, kw_only=True, eq=False):
    """A row: T tokens, five read-only arrays of length T."""

    ids: NDArray[np.int32]
    """The whole context, prompt included."""
    mask: NDArray[np.uint8]
    """1: sampled by the policy, to be trained, and in no other row."""
    logprobs: NDArray[np.float32]
    """Natural log, of the distribution that was sampled from. NaN where not sampled."""
    versions: NDArray[np.int32]
    """Policy version that sampled the token. -1 where not sampled."""
    call_of: NDArray[np.int32]
    """Index into `event.calls`. -1 where not sampled."""
    event: RowEvent
    """All that is known of it."""


class Session(Struct, frozen=True, kw_only=True, eq=False):
    """A delivered session. Count it once, however many rows it has."""

    session_id: str
    reward: float
    rewards: dict[str, float]
    """All named numbers of its grader."""
    rows: tuple[Row, ...]
    """None where nothing of it is to be trained: it still counts for the group's mean."""


class Group(Struct, frozen=True, kw_only=True, eq=False):
    """A whole group of one task."""

    group_id: str
    task_id: str
    run_id: str
    policy: str
    sessions: tuple[Session, ...]
    """The delivered ones; `event.members` names the others, with the reason."""
    partition: int
    offset: int
    """Where it stands in `trajectories.merged`."""
    event: GroupMerged

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of all sessions."""
        return (row for session in self.sessions for row in session.rows)


class Groups:
    """Groups of purpose `train` as they are delivered, for ever. Groups that failed are passed over.

    A connection that breaks is opened again where it stopped. Iterate once at a time; `position` is after the last group taken.
    """

    def __init__(
        self,
        source: Client | str,
        *,
        start: Mapping[str, int] | None = None,
        run_id: str | None = None,
        policy: str | None = None,
        follow: bool = True,
        blobs: str = "",
    ) -> None:
        """`source`: a client, or `kafka://HOST:PORT[,...][?prefix=NAME]`, with the deployment's blob store in `blobs`.

        `start`: a saved `position`; None: the log's beginning. `run_id`, `policy`: of this run, of this policy alone. `follow`: go on at
        the log's end, instead of stopping there.
        """
        self.position: Position = dict(start or {})
        self._source = source
        self._run_id = run_id
        self._policy = policy
        self._follow = follow
        self._blobs = blobs

    async def __aiter__(self) -> AsyncGenerator[Group, None]:
        """Yield groups. Raises ClientError, BusError; RequestRefused or PositionUnknown for a position of another log."""
        frames = self._from_kafka(self._source) if isinstance(self._source, str) else self._from_http(self._source)
        async with aclosing(frames):
            async for frame in frames:
                event = decode(frame.group)
                self.position[str(frame.partition)] = frame.next_offset
                if isinstance(event, GroupMerged) and self._wants(event):
                    yield group_of(event, frame)

    def _wants(self, event: GroupMerged) -> bool:
        return self._run_id in {None, event.run_id} and self._policy in {None, event.policy}

    async def _from_http(self, client: Client) -> AsyncGenerator[Delivered, None]:
        failures = 0
        while True:
            try:
                async with aclosing(client.delivered(self._at(), follow=self._follow)) as frames:
                    async for frame in frames:
                        failures = 0
                        yield frame
                if not self._follow:
                    return
            except (Unreachable, Unavailable):
                failures += 1
                if failures > MAX_AGAIN:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def _from_kafka(self, url: str) -> AsyncGenerator[Delivered, None]:
        if not url.startswith(KAFKA):
            msg = f"groups come from a client or from {KAFKA}HOST:PORT, not from {url!r}"
            raise ClientError(msg)
        from evener.client.groups_kafka import delivered_by_kafka  # noqa: PLC0415 - aiokafka and more, for those alone who use it

        async with aclosing(delivered_by_kafka(url, self._blobs, self._at(), follow=self._follow)) as frames:
            async for frame in frames:
                yield frame

    def _at(self) -> dict[int, int]:
        return {int(partition): offset for partition, offset in self.position.items()}


def group_of(event: GroupMerged, frame: Delivered) -> Group:
    """Return a delivered group with its arrays. Sessions without a reward are not in it."""
    return Group(
        group_id=event.group_id,
        task_id=event.task_id,
        run_id=event.run_id,
        policy=event.policy,
        sessions=tuple(_sessions(event)),
        partition=frame.partition,
        offset=frame.offset,
        event=event,
    )


def _sessions(event: GroupMerged) -> Iterator[Session]:
    for member in event.members:
        if member.left_out is None and member.scored is not None and member.scored.reward is not None:
            scored = member.scored
            rows = tuple(_row(row) for row in scored.trajectory.rows)
            yield Session(session_id=member.session_id, reward=member.scored.reward, rewards=scored.rewards, rows=rows)


def _row(row: RowEvent) -> Row:
    return Row(
        ids=int32s(row.ids),
        mask=uint8s(row.mask),
        logprobs=float32s(row.logprobs),
        versions=int32s(row.versions),
        call_of=int32s(row.call_of),
        event=row,
    )
