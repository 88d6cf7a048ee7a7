"""A program with a defence switched off: `python planted.py FAULT [ARGUMENT] up ...`, or with a service's name in place of `up`.

Tests of the tests: an audit must notice.
"""

import asyncio
import os
import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import structs

from evener.bus import kafka, kafka_producer
from evener.bus.kafka_client import put
from evener.bus.port import Outgoing, Position
from evener.cli.__main__ import main
from evener.cli.up import SERVICES
from evener.proto.codec import AnyEvent
from evener.proto.sessions import CallClosed, CallOpened, SessionGivenUp, SessionSealed
from evener.proto.state import GroupState
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryScored
from evener.provider_gateway import session
from evener.provider_gateway.call import CallRun
from evener.provider_gateway.inflight import Answered
from evener.runtime.faults import point
from evener.sandboxes.local import LocalSandbox
from evener.sandboxes.port import LOOPBACK
from evener.tokens.session import SessionLog
from evener.trainer_bridge import core, merging


def answer_before_commit() -> None:
    """The harness gets its answer, and acts on it, while the log does not have it yet."""

    async def commit(self: Any, opened: CallOpened, closed: CallClosed) -> None:
        self.call.put(Answered(opened=opened, closed=closed))
        await asyncio.sleep(5.0)  # so long the harness has to note it, also on a busy machine
        await self._partition.writer.commit(self._session, [opened, closed])

    replace(CallRun, "_commit", commit)


def sessions_not_recognised() -> None:
    """A session that was seen counts again, and a group that was delivered opens again."""

    def fold(state: GroupState | None, scored: TrajectoryScored) -> GroupState:
        known = core.fold(None if state is None or state.ended_at is not None else structs.replace(state, seen=()), scored)
        assert known is not None
        return known

    replace(merging, "fold", fold)


def seals_forgotten() -> None:
    """An owner that takes over does not heed the seals that it reads, and writes its own."""

    class Forgetful(SessionLog):
        def apply(self, event: AnyEvent, *, offset: int, record_at: float) -> bool:
            return False if isinstance(event, SessionSealed) else super().apply(event, offset=offset, record_at=record_at)

    replace(session, "SessionLog", Forgetful)


def outputs_before_offsets() -> None:
    """The bridge's outputs are in the log before its state and its offset are."""

    async def commit(self: Any, outgoing: Sequence[Any], offset: int) -> None:
        if outputs := [one for one in outgoing if one.topic != Topic.BRIDGE_STATE]:
            await self._producer.commit(outputs)
            await point("bridge.torn")
        await whole(self, [one for one in outgoing if one.topic == Topic.BRIDGE_STATE], offset)

    whole = merging.Merging._commit
    replace(merging.Merging, "_commit", commit)


def one_relay_port(port: str) -> None:
    """Every relay listens on the same port, as may happen on a busy machine: no defence is off."""

    async def listen(_: Any) -> socket.socket:
        return socket.create_server((LOOPBACK, int(port)))

    replace(LocalSandbox, "listen", listen)


def ids_of_their_own() -> None:
    """Each instance has transactional ids of its own, so that nobody who takes over fences anybody."""

    async def producer(self: Any, transactional_id: str) -> Any:
        return await fencing(self, f"{transactional_id}-{os.getpid()}")

    async def commit(self: Any, outgoing: Sequence[Any], offset: int) -> None:
        if any(one.topic != Topic.BRIDGE_STATE for one in outgoing):
            await point("bridge.delivering")
        await whole(self, outgoing, offset)

    fencing, whole = kafka.KafkaBus.producer, merging.Merging._commit
    replace(kafka.KafkaBus, "producer", producer)
    replace(merging.Merging, "_commit", commit)


def futures_ignored() -> None:
    """A commit counts when the transaction has ended well, whatever became of its records."""

    last = dict[int, int]()

    def position(record: Outgoing, partition: int, outcome: Any) -> Position:
        last[partition] = last.get(partition, -1) + 1 if isinstance(outcome, BaseException) else outcome.offset
        return Position(record.topic, partition, last[partition])

    async def acknowledged(self: Any, batch: Sequence[Any]) -> list[tuple[Position, ...]]:
        await self._producer.begin_transaction()
        done = []
        for commit in batch:
            futures = [await put(self._producer, self._cluster, record) for record in commit.records]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            places = [self._cluster.partition_of(record) for record in commit.records]
            done.append(tuple(map(position, commit.records, places, outcomes)))
        await self._send_offsets(batch)
        return done

    replace(kafka_producer.KafkaProducer, "_acknowledged", acknowledged)


def zombies_obeyed() -> None:
    """An owner gives a session up although a later attempt than the named one has started."""

    class Obedient(SessionLog):
        @property
        def abandoned(self) -> SessionGivenUp | None:
            return self.given_up

        def _give_up(self, event: SessionGivenUp) -> bool:
            self.given_up = event
            return True

    replace(session, "SessionLog", Obedient)


def replace(owner: object, name: str, value: object) -> None:
    """Put something else in the place of a part of Evener."""
    if not hasattr(owner, name):
        msg = f"{owner} has no {name} any more"
        raise AttributeError(msg)
    setattr(owner, name, value)


FAULTS: Final[dict[str, Callable[..., None]]] = {
    "answer before commit": answer_before_commit,
    "sessions not recognised": sessions_not_recognised,
    "seals forgotten": seals_forgotten,
    "outputs before offsets": outputs_before_offsets,
    "ids of their own": ids_of_their_own,
    "futures ignored": futures_ignored,
    "zombies obeyed": zombies_obeyed,
    "one relay port": one_relay_port,
}


PROGRAMS: Final = frozenset({"up", *SERVICES})


def run(words: Sequence[str]) -> None:
    """Plant a fault, and run a program with the words from its name on."""
    place = next(place for place, word in enumerate(words) if word in PROGRAMS)
    fault, *arguments = words[:place]
    FAULTS[fault](*arguments)
    if words[place] == "up":
        sys.argv[1:] = words[place:]
        main()
    else:
        sys.argv[1:] = words[place + 1 :]
        runpy.run_module(f"evener.{words[place]}", run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1:])
