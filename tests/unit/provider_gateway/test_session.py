"""A session while it lives: what is kept of it, and what waits for a thread that looks at it."""

import asyncio
import threading
from functools import partial

import pytest
from msgspec import structs
from tests.support.loop import turns
from tests.support.world import World, user

from evener.proto.arrays import inline
from evener.proto.codec import decode
from evener.proto.spec import PolicyOptions, Quirks
from evener.provider_gateway.session import SHORT_MESSAGES, SHORT_MESSAGES_BYTES, SessionRuntime
from evener.tokens.digests import Message
from evener.tokens.place import place

LONG = "word " * 200


class Played:
    """A session of long turns, and its life in a gateway."""

    def __init__(self, turns: int) -> None:
        self.world = World()
        self.talk = [user(LONG)]
        for _ in range(turns):
            self.talk += [self.world.ask(self.talk, "b"), user(LONG)]
        self.runtime = SessionRuntime("t.0")

    def fold(self) -> None:
        """Fold the log as its owner does that commits call by call, after the first was placed."""
        for offset, record in enumerate(self.world.log):
            self.runtime.fold([(decode(record), offset)], 100.0)
            assert self.runtime.history

    def take_over(self) -> None:
        """Fold the log as the next owner does."""
        for offset, record in enumerate(self.world.log):
            self.runtime.log.apply(decode(record), offset=offset, record_at=100.0)

    @property
    def text_bytes(self) -> int:
        """Bytes of messages that are kept."""
        return sum(len(inline(call.opened.messages)) for call in self.runtime.log.forest.calls.values())

    def extends(self) -> bool:
        """Whether the next call goes on from the last answer."""
        session, renderer = self.runtime, self.world.renderer
        placed = place(session.log.forest, session.history, self.talk, (), renderer=renderer, options=PolicyOptions(), quirks=Quirks())
        parent = placed.placement.parent
        return parent is not None and parent.call_id == f"c{self.world.calls}"


async def test_texts_of_a_long_session_are_not_kept() -> None:
    """They are in the log; the next call finds its place all the same."""
    played = Played(turns=10)
    played.fold()
    assert played.text_bytes < len(LONG)
    assert played.extends()


def test_texts_read_at_a_take_over_are_not_kept_after_the_first_call() -> None:
    played = Played(turns=10)
    played.take_over()
    assert played.text_bytes > 10 * len(LONG)
    assert played.extends()
    assert played.text_bytes < len(LONG)


@pytest.mark.parametrize(
    "talk",
    [[user("words " * (SHORT_MESSAGES_BYTES // 5))], [user("w")] * (SHORT_MESSAGES + 1)],
    ids=["long", "many"],
)
async def test_long_messages_are_taken_in_by_the_thread_that_places_the_next_call(talk: list[Message]) -> None:
    """They are decoded and hashed again: the loop goes on meanwhile."""
    played, threads = Played(turns=1), list[threading.Thread]()
    played.fold()
    first, before = len(played.world.log), played.text_bytes
    played.talk = list(talk)
    played.talk += [played.world.ask(played.talk, "b"), user(LONG)]
    for offset, record in list(enumerate(played.world.log))[first:]:
        played.runtime.fold([(decode(record), offset)], 100.0)
    assert played.text_bytes > before + SHORT_MESSAGES

    def look() -> bool:
        threads.append(threading.current_thread())
        return played.extends()

    assert await played.runtime.look(look)
    assert [thread is threading.main_thread() for thread in threads] == [False]
    assert played.text_bytes < before + SHORT_MESSAGES


async def test_session_is_looked_at_by_one_thread_at_a_time_and_changes_come_between() -> None:
    """In their order, and before the next look begins."""
    session, go_on, seen = SessionRuntime("t.0"), threading.Event(), list[str]()

    def first() -> None:
        assert go_on.wait(60)
        seen.append("first")

    looks = [asyncio.create_task(session.look(first)), asyncio.create_task(session.look(seen.append, "second"))]
    await turns()
    for change in ("one", "two"):
        session.change(partial(seen.append, change))
    assert seen == []
    go_on.set()
    await asyncio.gather(*looks)
    assert seen == ["first", "one", "two", "second"]
    session.change(lambda: seen.append("at once"))
    assert seen[-1] == "at once"


async def test_new_attempt_has_a_history_of_its_own() -> None:
    """Its harness is new and remembers nothing."""
    played = Played(turns=1)
    played.take_over()
    first = played.runtime.history
    start = played.runtime.log.starts[1]
    played.runtime.log.apply(structs.replace(start, attempt=2, start_id="again"), offset=99, record_at=100.0)
    (asked,) = played.runtime.log.forest.calls
    assert first.conversation_of(asked)
    assert not played.runtime.history.conversation_of(asked)
