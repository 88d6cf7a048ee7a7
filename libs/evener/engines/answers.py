"""Chunks of an answer, made and joined."""

from collections.abc import AsyncIterator, Sequence

import numpy as np

from evener.engines.port import Chunk, EngineError
from evener.proto.sessions import FinishReason


def chunk(
    ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    version: int = -1,
    finish_reason: FinishReason | None = None,
    cached_tokens: int | None = None,
) -> Chunk:
    """Return a chunk of S tokens, all of one version."""
    return Chunk(
        ids=np.asarray(ids, dtype=np.int32),
        logprobs=np.asarray(logprobs, dtype=np.float32),
        versions=np.full(len(ids), version, dtype=np.int32),
        finish_reason=finish_reason,
        cached_tokens=cached_tokens,
    )


async def whole(chunks: AsyncIterator[Chunk]) -> Chunk:
    """Return a whole answer as one chunk. Raises EngineError if it has no end, and what the engine raises."""
    return join([each async for each in chunks])


def join(chunks: Sequence[Chunk]) -> Chunk:
    """Return the chunks of a whole answer as one. Raises EngineError if the last has no finish reason."""
    if not chunks or chunks[-1].finish_reason is None:
        msg = "the answer ended without a finish reason"
        raise EngineError(msg)
    return partial(chunks)


def partial(chunks: Sequence[Chunk]) -> Chunk:
    """Return the chunks of an answer that may have been cut off as one, with a finish reason only if it has its end."""
    if not chunks:
        return chunk((), ())
    last = chunks[-1]
    versions = last.answer_versions
    return Chunk(
        ids=np.concatenate([each.ids for each in chunks]),
        logprobs=np.concatenate([each.logprobs for each in chunks]),
        versions=np.concatenate([each.versions for each in chunks]) if versions is None else versions,
        finish_reason=last.finish_reason,
        cached_tokens=last.cached_tokens,
        prompt_ids=chunks[0].prompt_ids,
    )
