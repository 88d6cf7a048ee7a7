"""Samples one answer in as many pieces as its engine makes of it. A piece that the engine ends early is continued from its exact ids."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import count
from typing import Final

import numpy as np
from msgspec.structs import replace

from evener.engines.answers import Sampled
from evener.engines.port import Chunk, EngineUnreachable, GenerateRequest
from evener.proto.sessions import FinishReason
from evener.provider_gateway.core import seed_of
from evener.provider_gateway.engine_handle import EngineHandle
from evener.provider_gateway.timings import TIMINGS, GatewayTimings

IN_VAIN: Final = 8
"""How many pieces in a row an engine may end before their first token, unless it is paused. After that it counts as broken."""

Take = Callable[[Chunk], bool]


async def sample_answer(
    engine: EngineHandle, request: GenerateRequest, sampled: Sampled, take: Take, timings: GatewayTimings = TIMINGS
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
