"""`evener up` with a defence switched off: `python planted.py FAULT [ARGUMENT] up ...`. Tests of the tests: an audit must notice."""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import structs

from evener.cli.__main__ import main
from evener.proto.codec import AnyEvent
from evener.proto.sessions import CallClosed, CallOpened, SessionSealed
from evener.proto.state import GroupState
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryScored
from evener.provider_gateway import session
from evener.provider_gateway.call import InflightCall
from evener.provider_gateway.feed import Answered
from evener.runtime.faults import point
from evener.sandbox_runner import relay
from evener.tokens.session import SessionLog
from evener.trainer_bridge import core, merging


def answer_before_commit() -> None:
    """The harness gets its answer, and acts on it, while the log does not have it yet."""

    async def commit(self: Any, opened: CallOpened, closed: CallClosed) -> None:
        self.feed.put(Answered(opened=opened, closed=closed))
        await asyncio.sleep(1.0)  # so long the harness has to note it
        await self._partition.writer.commit(self._session, [opened, closed])

    replace(InflightCall, "_commit", commit)


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

    class Sockets:
        @staticmethod
        def create_server(address: tuple[str, int]) -> socket.socket:
            return socket.create_server((address[0], int(port)))

    replace(relay, "socket", Sockets)


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
    "one relay port": one_relay_port,
}


if __name__ == "__main__":
    fault, *arguments = sys.argv[1 : sys.argv.index("up")]
    del sys.argv[1 : sys.argv.index("up")]
    FAULTS[fault](*arguments)
    main()
