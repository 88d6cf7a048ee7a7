"""One call while it is open: placed, sampled, closed. Nothing that lets a harness act leaves before the commit."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Final

import msgspec
import numpy as np
import structlog
from msgspec import Struct
from msgspec.structs import replace

from evener.blobs.port import BlobError
from evener.bus.port import BusError
from evener.dialects.canonical import Overflow, RequestError, Streamed
from evener.engines.answers import Sampled, cut
from evener.engines.port import Chunk, ContextOverflow, EngineError, EngineFacts, EngineUnreachable, GenerateRequest
from evener.proto.arrays import pack_float32, pack_int32
from evener.proto.blobs import BlobRef
from evener.proto.codec import AnyEvent
from evener.proto.ends import CallFailure, LeftOut
from evener.proto.ids import answer_identity, answer_key
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, CallUndelivered, Choice, Fidelity, FinishReason, MaskRange
from evener.proto.spec import SessionSpec, Streaming, Target
from evener.provider_gateway.asked import Asked, Failure, overloaded, too_long
from evener.provider_gateway.core import STOP_STATUS, seed_of
from evener.provider_gateway.live import Done, Flight, Live
from evener.provider_gateway.owner import Owner
from evener.provider_gateway.pauses import waits_told
from evener.provider_gateway.pieces import sample_answer
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.slots import Pooled
from evener.provider_gateway.threads import PLACING
from evener.service.faults import point
from evener.service.off_loop import to_its_end
from evener.tokens.place import Placed, settle

HELD_TOGETHER: Final = 32
"""Tokens that an engine may send at once where nobody sees them before the end: each event costs more than the tokens in it."""
VERSION_SECONDS: Final = 10.0
"""What an engine that does not report versions gets to say, after an answer, which one it has."""
SHORT_ANSWER_TOKENS: Final = 4_000
"""Reading so many takes a few milliseconds: the loop does it itself."""
STREAMING_PAUSES: Final = 20
"""Reading an answer for `live` takes at most this share of the time: one part in twenty."""
STREAMING_SECONDS: Final = 0.01
"""What is sampled within this time leaves together: each write costs more than the tokens in it, and nobody sees the difference."""

log = structlog.get_logger()


class Way(Struct, frozen=True, kw_only=True, eq=False):
    """Where a call hangs, and who is to answer it."""

    target: Target
    policy: Policy
    placed: Placed
    messages: bytes
    """To record, as JSON."""
    tools: bytes | None
    """To record, as JSON. None: there are none, or they are those of the call that this one extends."""
    attempt: int
    call_id: str
    number: int
    """Calls of the session and placings since the take-over: calls at once have seeds of their own."""
    try_number: int
    retry_of: str | None
    images: tuple[BlobRef, ...]
    """Of the messages to record."""
    looping: bool = False
    """Its history goes round in circles, more often than the session's budgets allow."""
    opened_at: float


class OpenCall:
    """What is known of one call between its opening and its end."""

    def __init__(
        self,
        owner: Owner,
        live: Live,
        flight: Flight,
        *,
        asked: Asked,
        way: Way,
        pooled: Pooled,
        waited_seconds: float,
        another_place: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """`another_place`: waits for one more at the engine, for a choice beside others."""
        self.owner = owner
        self.live = live
        self.flight = flight
        self.asked = asked
        self.way = way
        self.pooled = pooled
        self.opened = opening(live, asked, way, pooled.joined.engine_id)
        self.streaming = asked.request.stream and self.spec.streaming is Streaming.LIVE
        self._another_place = another_place
        self._waited_seconds = waited_seconds
        """For the engine: not the agent's time."""
        self._sampled: Final = [Sampled() for _ in range(asked.request.n)]
        """Of each choice."""
        self._cut_tokens = 0
        """Sampled when the session's budget was spent."""
        self._shown = False
        """The opening is committed, so that the answer may be streamed."""
        self._to_stream: asyncio.TimerHandle | None = None
        self._streamed_at = self._streaming_seconds = 0.0
        self._version = -1
        """Of all tokens, where the engine does not report it with each: the same before and after, else unknown."""
        self._first_token_at: float | None = None
        self.engine_began = time.time()

    @property
    def spec(self) -> SessionSpec:
        """What the session is to do."""
        return self.live.session.starts[self.opened.attempt].spec

    @property
    def sampled_tokens(self) -> int:
        """Tokens of all choices so far, and beyond them."""
        return sum(map(len, self._sampled)) + self._cut_tokens

    async def sample(self, max_tokens: int) -> None:
        """Sample all choices, of at most so many tokens each: the limit is recorded with the opening. Raises Failure."""
        self.opened = replace(self.opened, max_tokens=max_tokens)
        self.engine_began = time.time()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self.streaming:
                    tasks.create_task(self._show())
                gone = tasks.create_task(self.pooled.until_given_up())
                sampling = tasks.create_task(self._sample_choices(max_tokens))
                with self.pooled.pauses.told_to(self.flight):
                    await asyncio.wait([sampling])
                gone.cancel()
            await self._find_version(sampling.result())
        except* ContextOverflow as group:
            raise Failure(CallFailure.CONTEXT_OVERFLOW, self._too_long(_first(group))) from group
        except* EngineUnreachable as group:
            raise Failure(CallFailure.ENGINE_UNREACHABLE, overloaded("the engine does not answer"), str(_first(group))) from group
        except* EngineError as group:
            raise Failure(CallFailure.ENGINE_ERROR, overloaded("the engine failed"), str(_first(group))) from group
        except* (BusError, BlobError) as group:
            raise _first(group) from group
        finally:
            self._stop_streaming()

    async def _show(self) -> None:
        """Commit the opening while the engine begins, and stream from then on: a call that was seen in part and lost must be visible."""
        await self.owner.commit(self.live, [self.opened])
        self._shown = True
        if len(self._sampled[0]):
            self._stream_soon()

    async def close(self) -> None:
        """Commit the call with what it sampled, then let the answer go."""
        closed = await self._read_closed(aborted=False)
        async with waits_told(self.flight):
            await self.owner.commit(self.live, ending(self.live, self.opened, closed))
        await point("gateway.committed")
        self.flight.put(Done(opened=self.opened, closed=closed, streamed=self.flight.streamed))

    async def abort(self) -> None:
        """The harness or its session is gone: record what was sampled as aborted, or that there was nothing."""
        await to_its_end(self._abort())

    async def _abort(self) -> None:
        if self.live.session.has_ended(self.opened.call_id) or self.live.session.sealed is not None:
            return
        left = failing(self.opened, CallFailure.CANCELLED, "the harness left", STOP_STATUS)
        try:
            ended = await self._read_closed(aborted=True) if self.sampled_tokens else left
            await self.owner.commit(self.live, ending(self.live, self.opened, ended))
        except (BusError, BlobError) as error:
            self.live.owe(self.opened, msgspec.structs.replace(left, sampled_tokens=self.sampled_tokens))
            log.error("abort_not_committed", session_id=self.opened.session_id, error=str(error))

    def _too_long(self, overflow: BaseException) -> RequestError:
        """Return how the harness is told that the engine takes no prompt of this length."""
        numbers = overflow.numbers if isinstance(overflow, ContextOverflow) else None
        return too_long(self.asked, str(overflow.args[0]), numbers and Overflow(asked=numbers[0], limit=numbers[1]))

    async def _sample_choices(self, max_tokens: int) -> EngineFacts | None:
        """Sample; return what the engine said of itself before, where it does not report versions."""
        before = None if self.pooled.facts.reports_versions else await self.pooled.engine.facts()
        if self.asked.request.n == 1:  # nearly always: a group of tasks costs a tenth of a millisecond
            await self._sample_choice(0, max_tokens)
        else:
            await self._sample_beside_each_other(max_tokens)
        if any(sampled.finish_reason is None for sampled in self._sampled):
            msg = f"engine {self.pooled.joined.engine_id} broke its answer off"
            raise EngineUnreachable(msg)
        return before

    async def _sample_beside_each_other(self, max_tokens: int) -> None:
        """Sample several choices: in the place that the call has, and in more of them as its turn for each comes. None waits for others."""
        left = deque(range(self.asked.request.n))
        placed: set[asyncio.Task[None] | None] = set()

        async def sample_those_left() -> None:
            while left:
                await self._sample_choice(left.popleft(), max_tokens)

        async def help_out() -> None:
            async with self._another_place():
                placed.add(asyncio.current_task())
                await sample_those_left()

        async with asyncio.TaskGroup() as group:
            helpers = {group.create_task(help_out()) for _ in range(self.asked.request.n - 1)}
            await sample_those_left()
            for waiting in helpers - placed:
                waiting.cancel()

    async def _find_version(self, before: EngineFacts | None) -> None:
        """See by which version everything was sampled. An engine that cannot say so any more leaves it unknown: the answer stands."""
        if before is None:
            return
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(VERSION_SECONDS):
                if (await self.pooled.engine.facts()).version == before.version:
                    self._version = before.version

    async def _sample_choice(self, index: int, max_tokens: int) -> None:
        session, way = self.live.session, self.way
        request = GenerateRequest(
            request_id=f"{self.opened.call_id}-{index}",
            ids=way.placed.context,
            sampling=seed_of(self.opened.sampling, session.session_id, way.number, index),
            max_tokens=max_tokens,
            stop_ids=way.policy.renderer.stop_ids,
            together=1 if self.streaming else HELD_TOGETHER,
            session=session.session_id,
            messages=tuple(way.placed.said) if self.pooled.facts.renders else None,
            tools=self.asked.request.tools if self.pooled.facts.renders else (),
            images={image.digest: (image.media_type, image.data) for image in self.asked.request.images},
        )
        await sample_answer(self.pooled, request, self._sampled[index], partial(self._take, index))

    def _take(self, index: int, chunk: Chunk) -> bool:
        """Take what a choice has sampled; return False where the session's tokens are spent, by calls at once."""
        self.pooled.pauses.heard()
        if self._first_token_at is None and len(chunk.ids):
            self._first_token_at = time.time()
        had = self.live.spending.draw(self.opened.call_id, index, len(chunk.ids))
        self._cut_tokens += len(chunk.ids) - had
        self._sampled[index].add(chunk if had == len(chunk.ids) else cut(chunk, had))
        if self.streaming and index == 0 and had:
            self._stream_soon()
        return had == len(chunk.ids)

    def _stream_soon(self) -> None:
        """Stream what there is now, or a little later: not long ago was the last time, or reading a long answer again costs too much."""
        if self._to_stream is None and self._shown:
            loop = asyncio.get_running_loop()
            wait = self._streamed_at + max(STREAMING_PAUSES * self._streaming_seconds, STREAMING_SECONDS) - loop.time()
            if wait <= 0:
                self._stream()
            else:
                self._to_stream = loop.call_later(wait, self._stream)

    def _stream(self) -> None:
        """Let leave what no later token can change."""
        loop = asyncio.get_running_loop()
        self._to_stream, began = None, loop.time()
        reasoning, text = self.way.policy.renderer.certain(self._sampled[0].ids)
        shown = "" if self.opened.reasoning_withheld else reasoning
        self.flight.stream(answer_key(self.opened.call_id, 0), Streamed(reasoning=shown, text=text))
        self._streamed_at = loop.time()
        self._streaming_seconds = self._streamed_at - began

    def _stop_streaming(self) -> None:
        """Nothing leaves after the sampling but the answer: what has failed unseen must stay unseen."""
        if self._to_stream is not None:
            self._to_stream.cancel()
            self._to_stream = None

    async def _read_closed(self, *, aborted: bool) -> CallClosed:
        """Return the call's end, with its answers read: long ones in a thread."""
        if sum(map(len, self._sampled)) > SHORT_ANSWER_TOKENS:
            return await PLACING.run(self._closed, aborted=aborted)
        return self._closed(aborted=aborted)

    def _closed(self, *, aborted: bool) -> CallClosed:
        opened, now = self.opened, time.time()
        answer_id, created = answer_identity(opened.request_id)
        settled = self._settled(aborted=aborted)
        moved = settled is not None and settled is not self.way.placed
        cached = [sampled.cached_tokens for sampled in self._sampled if sampled.cached_tokens is not None]
        return CallClosed(
            session_id=opened.session_id,
            attempt=opened.attempt,
            call_id=opened.call_id,
            request_id=opened.request_id,
            choices=tuple(self._choice(index, sampled, aborted=aborted) for index, sampled in enumerate(self._sampled)),
            fidelity=Fidelity.FED if settled is None else Fidelity.MATCHED,
            placement=settled.placement if settled is not None and moved else None,
            given_ids=pack_int32(settled.given) if settled is not None and moved else None,
            prompt_tokens=len(settled.context) if settled is not None and moved else None,
            answer_id=answer_id,
            answer_created=created,
            cached_tokens=max(cached) if cached else None,
            cut_tokens=self._cut_tokens,
            queue_seconds=self._waited_seconds,
            first_token_seconds=None if self._first_token_at is None else self._first_token_at - opened.opened_at,
            engine_seconds=now - self.engine_began,
            closed_at=now,
        )

    def _settled(self, *, aborted: bool) -> Placed | None:
        """Return the final placement by the prompt ids that the engine reported. None: it was fed ours."""
        reported = [sampled.prompt_ids for sampled in self._sampled if sampled.prompt_ids is not None]
        if not reported:
            return None
        if not aborted and any(not np.array_equal(one, reported[0]) for one in reported):  # each answer would hang elsewhere
            raise Failure(CallFailure.ENGINE_ERROR, overloaded("the engine failed"), "its answers to one call have different prompts")
        return settle(self.live.session.forest, self.way.placed, reported[0])

    def _choice(self, index: int, sampled: Sampled, *, aborted: bool) -> Choice:
        pooled, renderer = self.pooled, self.way.policy.renderer
        whole = sampled.partial() if aborted else sampled.whole()
        ids = whole.ids
        versions = whole.versions if pooled.facts.reports_versions else np.full(len(ids), self._version, np.int32)
        why = LeftOut.IMAGE if self.asked.request.images else None if pooled.rule.exact_for(self.opened.sampling) else LeftOut.CONSTRAINED
        return Choice(
            sampled_ids=pack_int32(ids),
            logprobs=pack_float32(whole.logprobs),
            versions=pack_int32(versions),
            finish_reason=FinishReason.ABORTED if aborted else whole.finish_reason or FinishReason.ABORTED,
            message=msgspec.json.encode(renderer.parse(ids, call_id=self.opened.call_id, choice=index, tools=self.asked.request.tools)),
            masked=() if why is None else (MaskRange(start=0, end=len(ids), reason=why),),
            reasoning_tokens=renderer.reasoning_length(ids),
            continued_at=sampled.continued_at,
        )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in nested groups."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def opening(live: Live, asked: Asked, way: Way, engine_id: str) -> CallOpened:
    """Return the record of a call's placement. `engine_id`: empty where none was free."""
    request, session, placed = asked.request, live.session, way.placed
    start = session.starts[way.attempt]
    return CallOpened(
        session_id=session.session_id,
        attempt=way.attempt,
        start_id=start.start_id,
        call_id=way.call_id,
        request_id=asked.request_id,
        try_number=way.try_number,
        dialect=request.dialect,
        model=request.model,
        policy=way.target.policy,
        engine_id=engine_id,
        placement=placed.placement,
        given_ids=pack_int32(placed.given),
        prompt_tokens=len(placed.context),
        follows=placed.follows,
        messages=way.messages,
        message_count=len(request.messages),
        tools=way.tools,
        tool_count=len(request.tools),
        tools_hidden=bool(request.tools) and not way.policy.renderer.renders_tools,
        side_call=placed.side_call,
        sub_agent=asked.sub_agent,
        options=way.policy.config.options,
        sampling=start.spec.sampling,
        wishes=msgspec.json.encode(dict(request.wishes)),
        cuts=placed.cuts,
        retry_of=way.retry_of,
        images=way.images,
        streamed=request.stream,
        reasoning_withheld=request.reasoning_withheld,
        n=request.n,
        body_digest=asked.body_digest,
        opened_at=way.opened_at,
    )


def failing(opened: CallOpened, reason: CallFailure, detail: str, status: int, sampled_tokens: int = 0) -> CallFailed:
    """Return the record of a call's failure, now, with the tokens that were seen of it."""
    return CallFailed(
        session_id=opened.session_id,
        attempt=opened.attempt,
        call_id=opened.call_id,
        request_id=opened.request_id,
        reason=reason,
        detail=detail,
        status=status,
        failed_at=time.time(),
        sampled_tokens=sampled_tokens,
    )


def ending(live: Live, opened: CallOpened, end: CallClosed | CallFailed) -> list[AnyEvent]:
    """Return what to commit for a call's end: its opening too, unless that was committed before."""
    return [end] if opened.call_id in live.session.forest.calls else [opened, end]


def undelivered(opened: CallOpened, request_id: str) -> CallUndelivered:
    """Return the record that a request's harness left before it had the answer, now."""
    return CallUndelivered(
        session_id=opened.session_id, attempt=opened.attempt, call_id=opened.call_id, request_id=request_id, undelivered_at=time.time()
    )
