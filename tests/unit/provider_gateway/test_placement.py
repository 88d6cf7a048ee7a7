"""Placing calls: in a thread, while nothing of the session changes."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import structs
from tests.support.toy import ToyRenderer
from tests.support.waiting import eventually
from tests.support.world import World, user

from evener.blobs.open import open_blobs
from evener.dialects.canonical import CanonicalRequest, Overflow, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.arrays import inline
from evener.proto.codec import decode
from evener.proto.reasons import CallFailure
from evener.proto.sessions import RootReason
from evener.proto.spec import Budgets
from evener.provider_gateway.core import ParsedRequest, Sample
from evener.provider_gateway.placement import MAX_PROMPT_CHARACTERS, MAX_REQUESTED_CHARACTERS, PlacedCall, Placer
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.session import SessionRuntime
from evener.templates.config import PolicyConfig
from evener.templates.port import PromptTooLong
from evener.tokens.digests import Message
from evener.tokens.forest import Ids

CALL = {"id": "c", "name": "run", "arguments": {}}


class SlowRenderer(ToyRenderer):
    """Renders nothing before it is told to go on."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.refusal: PromptTooLong | None = None

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> Ids:
        self.began.set()
        assert self.go_on.wait(60), "the loop waits for a render"
        if self.refusal is not None:
            raise self.refusal
        return super().render(messages, tools)


class Gateway:
    """A session, and a policy that takes its time."""

    def __init__(self) -> None:
        self.world = World()
        self.session = SessionRuntime("t.0")
        self.renderer = SlowRenderer()
        policy = Policy(config=PolicyConfig(name="policy", source="toy"), renderer=self.renderer)  # type: ignore[arg-type]
        self.placer = Placer({"policy": policy}, open_blobs("memory://"), lambda _: None)
        self.folded = 0
        self.apply()

    def apply(self) -> None:
        """Fold what the log has more."""
        for offset, record in list(enumerate(self.world.log))[self.folded :]:
            self.session.log.apply(decode(record), offset=offset, record_at=100.0)
        self.folded = len(self.world.log)

    async def place(self, text: str) -> PlacedCall:
        """Place a call that says one thing."""
        return await self.place_all((user(text),))

    async def place_all(self, messages: tuple[Message, ...], **requested: Any) -> PlacedCall:
        """Place a call with this history and these requested parameters."""
        canonical = CanonicalRequest(
            dialect="openai_chat", model="m", messages=messages, tools=(), stream=False, requested_params=requested
        )
        request = ParsedRequest(request_id="r", dialect=OpenAIChat(), canonical=canonical, body_digest="d")
        return await self.placer.place(self.session, request, Sample(1))


async def test_requested_parameters_of_any_size_leave_a_small_record() -> None:
    """Each call of a session may have 30 MB of `metadata`, which every owner of the partition would have to hold."""
    gateway = Gateway()
    gateway.renderer.go_on.set()
    small = await gateway.place_all((user("hi"),), temperature=0.5, metadata={"run": "x" * 1000})
    assert msgspec.json.decode(inline(small.opened.requested_params)) == {"temperature": 0.5, "metadata": {"run": "x" * 1000}}
    for requested in ({"metadata": {"x": "y" * (1 << 20)}}, {f"{'x' * 500}{number}": number for number in range(500)}):
        large = await gateway.place_all((user("hi"),), **requested)
        told = msgspec.json.decode(inline(large.opened.requested_params))["omitted"]
        assert told["characters"] > MAX_REQUESTED_CHARACTERS
        assert told["names"] == [name[:100] for name in requested][:20]


async def test_loop_continues_while_a_call_is_rendered() -> None:
    gateway = Gateway()
    placing = asyncio.create_task(gateway.place("hello"))
    await eventually(gateway.renderer.began.is_set)
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
    await eventually(gateway.renderer.began.is_set)

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
    with pytest.raises(RequestError, match=f"at most {MAX_PROMPT_CHARACTERS} are served") as refused:
        await gateway.place("x" * (MAX_PROMPT_CHARACTERS + 1))

    assert refused.value.kind == "context_length_exceeded"
    assert not gateway.renderer.began.is_set()


async def test_long_numbers_are_text_that_is_refused_too() -> None:
    """A tool's schema allowed a thousand numbers of 4,200 digits: its characters were not counted, and writing it stopped all threads."""
    gateway = Gateway()
    call = {"id": "c", "name": "run", "arguments": {"numbers": [10**999] * (MAX_PROMPT_CHARACTERS // 1000)}}
    with pytest.raises(RequestError, match=f"at most {MAX_PROMPT_CHARACTERS} are served") as refused:
        await gateway.place_all((user("hello"), {"role": "assistant", "content": "", "tool_calls": [call]}))

    assert refused.value.kind == "context_length_exceeded"
    assert not gateway.renderer.began.is_set()


@pytest.mark.parametrize("numbers", [{}, {"tokens": 9, "limit": 4}])
async def test_text_that_only_the_renderer_finds_too_long_is_the_agents_too(
    numbers: dict[str, int],
) -> None:
    """Whether a prompt of four million letters is too long for one text or for the context, the harness shortens its history."""
    gateway = Gateway()

    gateway.renderer.refusal = PromptTooLong("too long by far", **numbers)
    gateway.renderer.go_on.set()
    with pytest.raises(RequestError, match="too long by far") as refused:
        await gateway.place("hello")

    assert (refused.value.kind, refused.value.reason) == ("context_length_exceeded", CallFailure.CONTEXT_OVERFLOW)
    assert refused.value.overflow == (Overflow(asked=9, limit=4) if numbers else None)


async def test_loop_continues_while_a_history_is_searched_for_circles() -> None:
    """Four million letters of notes took 400 ms."""
    readers: list[threading.Thread] = []

    class Watched(tuple[Message, ...]):
        """A history that notes which threads read it from its end."""

        __slots__ = ()

        def __reversed__(self) -> Iterator[Message]:
            readers.append(threading.current_thread())
            return reversed(tuple(self))

    gateway = Gateway()
    gateway.renderer.go_on.set()
    start = gateway.session.log.starts[1]
    spec = structs.replace(start.spec, budgets=Budgets(repeats=3))
    gateway.session.log.starts[1] = structs.replace(start, spec=spec)
    turn = ({"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "x"})
    assert (await gateway.place_all(Watched((user("hello"), *(turn * 3))))).looping
    assert readers
    assert threading.main_thread() not in readers
