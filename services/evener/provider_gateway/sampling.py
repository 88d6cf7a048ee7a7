"""Samples the answers of one call from its engine, each in as many pieces as the engine splits it into, and creates their record."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from evener.engines.answers import Sampled, cut
from evener.engines.port import Chunk, EngineError, EngineFacts, EngineUnreachable, GenerateRequest
from evener.proto.arrays import pack_float32, pack_int32
from evener.proto.ids import answer_identity
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import CallClosed, CallOpened, Choice, Fidelity, FinishReason, MaskRange
from evener.proto.spec import Streaming
from evener.provider_gateway.core import seed_of
from evener.provider_gateway.engine_handle import EngineHandle, EngineSlots, Silence
from evener.provider_gateway.inflight import InflightCall
from evener.provider_gateway.placement import PlacedCall
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.streaming import AnswerStream
from evener.provider_gateway.threads import ENDING, PLACING
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings
from evener.provider_gateway.writer import PartitionWriter
from evener.runtime.faults import point_in_thread
from evener.runtime.interrupt import Interrupt
from evener.runtime.tasks import Tasks
from evener.tokens.forest import Ids
from evener.tokens.place import settle

BUFFERED_STREAM_INTERVAL: Final = 32
"""The number of tokens that an engine may send at once if nobody sees them before the end: each event costs more than its tokens."""
VERSION_SECONDS: Final = 10.0
"""How long an engine that does not report versions has to say, after an answer, which version it has."""
SHORT_ANSWER_TOKENS: Final = 4_000
"""An answer of this size is parsed in a few milliseconds, so the loop does it itself."""

IN_VAIN: Final = 8
"""How many pieces in a row an engine may end before their first token, unless it is paused. After that it counts as broken."""


class CallSampling(Struct, kw_only=True, eq=False):
    """The answers of one call, from the first token to the record."""

    session: SessionRuntime
    placed: PlacedCall
    opened: CallOpened
    slots: EngineSlots
    call: InflightCall
    max_tokens: int
    """The limit of each answer."""
    timings: GatewayTimings
    silence: Silence
    began: float = field(default_factory=time.time)
    opening: asyncio.Future[None] | None = None
    """The commit of the opening (`live`): a call that was seen in part and lost must be visible."""
    _answers: list[Sampled] = field(default_factory=list)
    _cut_tokens: int = 0
    """The number of tokens sampled after the session's budget was spent."""
    _stream: AnswerStream | None = None
    _interrupt: Interrupt = field(default_factory=Interrupt)
    _version: int = -1
    """The version of all tokens if the engine does not report versions per token: the same before and after, otherwise unknown."""
    _first_token_at: float | None = None

    def __post_init__(self) -> None:
        self._answers = [Sampled() for _ in range(self.opened.n)]

    @property
    def tokens(self) -> int:
        """The number of tokens of all answers so far, including those cut off."""
        return sum(map(len, self._answers)) + self._cut_tokens

    async def run(self, writer: PartitionWriter) -> None:
        """Sample all answers. Raises EngineError, and what the commit of the opening raises."""
        if self.placed.request.canonical.stream and self.placed.spec.streaming is Streaming.LIVE:
            self._begin_to_stream(writer)
        try:
            with self._interrupt, self.silence, self.slots.engine.pauses.told_to(self.call.put):
                before = None if self.slots.engine.facts.reports_versions else await self.slots.engine.engine.facts()
                if len(self._answers) == 1:
                    await self._sample(0)
                else:
                    await self._sample_beside_each_other()
                self._check_prompts()
                await self._find_version(before)
                if self.opening is not None:
                    await asyncio.wait([self.opening])
        finally:
            if self._stream is not None:
                self._stream.stop()

    async def closed(self, *, aborted: bool = False) -> CallClosed:
        """Return the record of the call's end with its answers parsed, long ones in a thread. `aborted`: with what there is so far."""
        if sum(map(len, self._answers)) > SHORT_ANSWER_TOKENS:
            return await (ENDING if aborted else PLACING).run(self._closed, aborted=aborted)
        return self._closed(aborted=aborted)

    def _begin_to_stream(self, writer: PartitionWriter) -> None:
        """Commit the opening while the engine starts, and stream from then on."""
        renderer = self.placed.policy.renderer
        stream = self._stream = AnswerStream(self._answers[0], renderer, self.call, self.opened, self.timings)

        def committed(opening: asyncio.Future[None]) -> None:
            if (error := opening.exception()) is None:
                stream.begin()
            elif isinstance(error, Exception):
                self._interrupt.end(error)

        self.opening = writer.commit(self.session, [self.opened])
        self.opening.add_done_callback(committed)

    async def _sample_beside_each_other(self) -> None:
        """Sample several answers: the first in the slot that the call has, the others in further slots as its turn comes."""
        left = deque(range(len(self._answers)))
        placed: set[asyncio.Task[None] | None] = set()

        async def sample_those_left() -> None:
            while left:
                await self._sample(left.popleft())

        async def help_out() -> None:
            async with self.slots.another():
                placed.add(asyncio.current_task())
                await sample_those_left()

        async with Tasks() as tasks:
            helpers = {tasks.create_task(help_out()) for _ in range(len(self._answers) - 1)}
            await sample_those_left()
            for waiting in helpers - placed:
                waiting.cancel()

    async def _sample(self, index: int) -> None:
        engine, placed, sampled = self.slots.engine, self.placed, self._answers[index]
        request = GenerateRequest(
            request_id=f"{self.opened.call_id}-{index}",
            ids=placed.tokens.context,
            sampling=seed_of(self.opened.sampling, self.session.session_id, placed.number, index),
            max_tokens=self.max_tokens,
            stop_ids=placed.policy.renderer.stop_ids,
            stream_interval=BUFFERED_STREAM_INTERVAL if self._stream is None else 1,
            session=self.session.session_id,
            messages=tuple(placed.tokens.history) if engine.facts.renders else None,
            tools=self.placed.request.canonical.tools if engine.facts.renders else (),
            images={image.digest: (image.media_type, image.data) for image in self.placed.request.canonical.images},
        )
        await sample_answer(engine, request, sampled, partial(self._take, index), self.timings)
        if sampled.finish_reason is None:
            msg = f"engine {engine.joined.engine_id} broke its answer off"
            raise EngineUnreachable(msg)

    def _take(self, index: int, chunk: Chunk) -> bool:
        """Take a chunk of an answer. Returns False if concurrent calls have spent the session's tokens."""
        count = len(chunk.ids)
        self.slots.engine.pauses.heard()
        self.silence.heard()
        if self._first_token_at is None and count:
            self._first_token_at = time.time()
        had = self.session.budget.draw(self.opened.call_id, index, count)
        self._cut_tokens += count - had
        self._answers[index].add(chunk if had == count else cut(chunk, had))
        if self._stream is not None and index == 0 and had:
            self._stream.grown()
        return had == count

    def _check_prompts(self) -> None:
        """Raise EngineError if the answers have different prompts, and therefore different placements."""
        reported = self._reported()
        if any(not np.array_equal(one, reported[0]) for one in reported):
            msg = f"engine {self.slots.engine.joined.engine_id} gave its answers to one call different prompts"
            raise EngineError(msg)

    async def _find_version(self, before: EngineFacts | None) -> None:
        """Find the version that sampled everything. It stays unknown if the engine can no longer report it; the answer remains valid."""
        if before is None:
            return
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(VERSION_SECONDS):
                if (await self.slots.engine.engine.facts()).version == before.version:
                    self._version = before.version

    def _reported(self) -> list[Ids]:
        """Return the prompt ids that the engine reported, if it rendered the prompt itself."""
        return [sampled.prompt_ids for sampled in self._answers if sampled.prompt_ids is not None]

    def _closed(self, *, aborted: bool) -> CallClosed:
        point_in_thread("gateway.closing")
        opened, now = self.opened, time.time()
        answer_id, created = answer_identity(opened.request_id)
        reported, cached = self._reported(), [sampled.cached_tokens for sampled in self._answers if sampled.cached_tokens is not None]
        settled = settle(self.session.log.forest, self.placed.tokens, reported[0]) if reported else self.placed.tokens
        moved = settled is not self.placed.tokens
        return CallClosed(
            session_id=opened.session_id,
            attempt=opened.attempt,
            call_id=opened.call_id,
            request_id=opened.request_id,
            choices=tuple(self._choice(index, sampled, aborted=aborted) for index, sampled in enumerate(self._answers)),
            fidelity=Fidelity.MATCHED if reported else Fidelity.FED,
            placement=settled.placement if moved else None,
            prompt_delta_ids=pack_int32(settled.prompt_delta_ids) if moved else None,
            prompt_tokens=len(settled.context) if moved else None,
            answer_id=answer_id,
            answer_created=created,
            cached_tokens=max(cached, default=None),
            cut_tokens=self._cut_tokens,
            queue_seconds=self.slots.waited_seconds,
            first_token_seconds=None if self._first_token_at is None else self._first_token_at - opened.opened_at,
            engine_seconds=now - self.began,
            closed_at=now,
        )

    def _choice(self, index: int, sampled: Sampled, *, aborted: bool) -> Choice:
        engine, renderer = self.slots.engine, self.placed.policy.renderer
        whole = sampled.partial() if aborted else sampled.whole()
        ids = whole.ids
        versions = whole.versions if engine.facts.reports_versions else np.full(len(ids), self._version, np.int32)
        exact = engine.rule.exact_for(self.opened.sampling)
        why = ExclusionReason.IMAGE if self.placed.request.canonical.images else None if exact else ExclusionReason.CONSTRAINED
        return Choice(
            sampled_ids=pack_int32(ids),
            logprobs=pack_float32(whole.logprobs),
            versions=pack_int32(versions),
            finish_reason=FinishReason.ABORTED if aborted else whole.finish_reason or FinishReason.ABORTED,
            message=msgspec.json.encode(
                renderer.parse(ids, call_id=self.opened.call_id, choice=index, tools=self.placed.request.canonical.tools)
            ),
            masked=() if why is None else (MaskRange(start=0, end=len(ids), reason=why),),
            reasoning_tokens=renderer.reasoning_length(ids),
            continued_at=sampled.continued_at,
        )


async def sample_answer(
    engine: EngineHandle,
    request: GenerateRequest,
    sampled: Sampled,
    take: Callable[[Chunk], bool],
    timings: GatewayTimings = GATEWAY_TIMINGS,
) -> None:
    """Sample an answer to its end. `take` adds each chunk to `sampled`, and returns whether more is wanted.

    Raises what the engine raises, and EngineUnreachable for an answer that it ends early and that cannot be continued.
    """
    in_vain = 0
    for number in count():
        had = len(sampled)
        async with aclosing(engine.engine.generate(_continued(request, sampled, number))) as chunks:
            async for chunk in chunks:
                if not take(chunk):
                    return
        if sampled.finish_reason is not FinishReason.ABORTED:
            return
        if (end := _end_of(request, sampled)) is not None:
            sampled.finish_reason = end
            return
        came = len(sampled) > had
        in_vain = 0 if came or await engine.pauses.are_on() else in_vain + 1
        if in_vain == IN_VAIN or not _can_go_on(request, sampled):
            msg = f"engine {engine.joined.engine_id} broke its answer off"
            raise EngineUnreachable(msg)
        sampled.go_on()
        if not came:
            await asyncio.sleep(timings.empty_piece)


def _end_of(request: GenerateRequest, sampled: Sampled) -> FinishReason | None:
    """Return why an answer ended whose engine was asked to end it just when it had ended: a later piece would sample beyond its end."""
    if len(sampled) and int(sampled.ids[-1]) in request.stop_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(sampled) == request.max_tokens else None


def _can_go_on(request: GenerateRequest, sampled: Sampled) -> bool:
    """Return whether ids are enough to continue. An engine that renders the prompt itself must have reported its ids."""
    return not len(sampled) or request.messages is None or (sampled.prompt_ids is not None and not request.images)


def _continued(request: GenerateRequest, sampled: Sampled, number: int) -> GenerateRequest:
    """Return the request for a piece: the context, all tokens sampled so far, and a limit lowered by their number."""
    if not number:
        return request
    named = replace(request, request_id=f"{request.request_id}.{number}")
    if not len(sampled):
        return named
    context = request.ids if sampled.prompt_ids is None else sampled.prompt_ids
    return replace(
        named,
        ids=np.concatenate((context, sampled.ids)),
        messages=None,
        tools=(),
        max_tokens=request.max_tokens - len(sampled),
        sampling=seed_of(request.sampling, len(sampled)),  # with the first piece's seed it would draw the same numbers again
    )
