"""Placing calls: in a thread, while nothing of the session changes."""

import asyncio
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from msgspec import structs
from tests.support.toy import ToyRenderer
from tests.support.world import World, user

from evener.blobs.open import open_blobs
from evener.dialects.canonical import CanonicalRequest, Message, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.arrays import inline
from evener.proto.codec import decode
from evener.proto.sessions import RootReason
from evener.proto.spec import Budgets
from evener.provider_gateway.core import Sample
from evener.provider_gateway.placement import MOST_CHARACTERS, PlacedCall, Placer
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.request import ParsedRequest
from evener.provider_gateway.session import SessionRuntime
from evener.templates.config import PolicyConfig
from evener.tokens.forest import Ids


class SlowRenderer(ToyRenderer):
    """Renders nothing before it is told to go on."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> Ids:
        self.began.set()
        assert self.go_on.wait(60), "the loop waits for a render"
        return super().render(messages, tools)


class Gateway:
    """A session, and a policy that takes its time."""

    def __init__(self) -> None:
        self.world = World()
        self.session = SessionRuntime("t.0")
        self.renderer = SlowRenderer()
        policy = Policy(config=PolicyConfig(name="policy", source="toy"), renderer=self.renderer)  # type: ignore[arg-type]
        self.placer = Placer({"policy": policy}, open_blobs("memory://"))
        self.folded = 0
        self.apply()

    def apply(self) -> None:
        """Fold what the log has more."""
        for offset, record in list(enumerate(self.world.log))[self.folded :]:
            self.session.log.apply(decode(record), offset=offset, record_at=100.0)
        self.folded = len(self.world.log)

    async def place(self, text: str) -> PlacedCall:
        """Place a call that says one thing."""
        canonical = CanonicalRequest(dialect="openai_chat", model="m", messages=(user(text),), tools=(), stream=False, requested_params={})
        request = ParsedRequest(request_id="r", dialect=OpenAIChat(), canonical=canonical, body_digest="d")
        return await self.placer.place(self.session, request, Sample(1))


async def test_loop_goes_on_while_a_call_is_rendered() -> None:
    gateway = Gateway()
    placing = asyncio.create_task(gateway.place("hello"))
    while not gateway.renderer.began.is_set():  # noqa: ASYNC110 (a thread tells)
        await asyncio.sleep(0.001)
    gateway.renderer.go_on.set()
    placed = await placing

    assert np.array_equal(placed.tokens.context, gateway.renderer.render([user("hello")], None))
    assert (msgspec.json.decode(inline(placed.opened.messages)), placed.opened.tools) == (
        [user("hello")],
        None,
    )  # written there, too: 16 MB take 40 ms


async def test_nothing_is_folded_in_while_a_call_is_placed() -> None:
    """What it may extend, and what it shares a beginning with, is the same when the thread ends as when it began."""
    gateway = Gateway()
    gateway.world.ask([user("first")], "answer")
    committed = [(decode(record), offset) for offset, record in list(enumerate(gateway.world.log))[gateway.folded :]]
    placing = asyncio.create_task(gateway.place("hello"))
    while not gateway.renderer.began.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.001)

    gateway.session.change(lambda: gateway.session.fold(committed, 100.0))
    assert not gateway.session.log.forest.calls
    gateway.renderer.go_on.set()

    assert (await placing).tokens.placement.root is RootReason.FIRST
    assert gateway.session.log.forest.calls


async def test_calls_that_are_placed_at_once_have_numbers_of_their_own() -> None:
    """Or the same seed would give both the same answer."""
    gateway = Gateway()
    gateway.renderer.go_on.set()
    placed = await asyncio.gather(*(gateway.place("hello") for _ in range(3)))

    assert len({each.number for each in placed}) == 3


async def test_more_text_than_any_context_holds_is_refused_before_it_is_rendered() -> None:
    """Its harness is told in words that make it shorten its history."""
    gateway = Gateway()
    with pytest.raises(RequestError, match=f"at most {MOST_CHARACTERS} are served") as refused:
        await gateway.place("x" * (MOST_CHARACTERS + 1))

    assert refused.value.kind == "context_length_exceeded"
    assert not gateway.renderer.began.is_set()


async def test_loop_goes_on_while_a_history_is_searched_for_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four million letters of notes took 400 ms."""
    gateway = Gateway()
    gateway.renderer.go_on.set()
    start = gateway.session.log.starts[1]
    spec = structs.replace(start.spec, budgets=Budgets(repeats=3))
    gateway.session.log.starts[1] = structs.replace(start, spec=spec)
    threads: list[threading.Thread] = []

    def found(messages: Sequence[Message], repeats: int | None) -> bool:
        del messages
        threads.append(threading.current_thread())
        return repeats == 3

    monkeypatch.setattr("evener.provider_gateway.placement.looping", found)
    assert (await gateway.place("hello")).looping
    assert [thread is threading.main_thread() for thread in threads] == [False]
