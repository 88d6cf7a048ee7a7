"""Creates, cuts and joins the chunks of an answer."""

from collections.abc import AsyncIterator, Iterable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from evener.engines.port import Chunk, EngineUnreachable
from evener.proto.sessions import FinishReason


class Sampled:
    """A growing answer. Its chunks are joined as they arrive, so that a token takes 12 bytes instead of a chunk's."""

    def __init__(self) -> None:
        self.finish_reason: FinishReason | None = None
        """The finish reason of the last chunk."""
        self.continued_at: tuple[int, ...] = ()
        """The number of tokens each time the answer was continued."""
        self.cached_tokens: int | None = None
        self.prompt_ids: NDArray[np.int32] | None = None
        self._ids, self._logprobs, self._versions = bytearray(), bytearray(), bytearray()
        self._piece_versions: NDArray[np.int32] | None = None
        """The versions in the last chunk, of all tokens since the answer was last continued."""

    def __len__(self) -> int:
        """Return the number of tokens so far."""
        return len(self._ids) // 4

    @property
    def ids(self) -> NDArray[np.int32]:
        """int32[S]: the ids so far."""
        return np.frombuffer(bytes(self._ids), np.int32)

    def add(self, part: Chunk) -> None:
        """Append the next chunk."""
        self._ids += part.ids.tobytes()
        self._logprobs += part.logprobs.tobytes()
        self._versions += part.versions.tobytes()
        self.finish_reason, self._piece_versions = part.finish_reason, part.answer_versions
        self.cached_tokens = (
            part.cached_tokens if self.cached_tokens is None else self.cached_tokens
        )  # later pieces find the earlier ones cached
        self.prompt_ids = part.prompt_ids if self.prompt_ids is None else self.prompt_ids

    def go_on(self) -> None:
        """Note that the next chunk comes from another request, which was given all tokens so far."""
        self._versions = bytearray(self._known_versions().tobytes())
        self.finish_reason, self._piece_versions = None, None
        if len(self) and len(self) not in self.continued_at:
            self.continued_at += (len(self),)

    def whole(self) -> Chunk:
        """Return the answer as one chunk. Raises EngineUnreachable if it did not end."""
        if self.finish_reason is None:
            msg = "the answer ended without a finish reason"
            raise EngineUnreachable(msg)
        return self.partial()

    def partial(self) -> Chunk:
        """Return an answer that may have been cut off as one chunk. It has a finish reason only if the answer ended."""
        return Chunk(
            ids=self.ids,
            logprobs=np.frombuffer(bytes(self._logprobs), np.float32),
            versions=self._known_versions(),
            finish_reason=self.finish_reason,
            cached_tokens=self.cached_tokens,
            prompt_ids=self.prompt_ids,
        )

    def _known_versions(self) -> NDArray[np.int32]:
        came, told = np.frombuffer(bytes(self._versions), np.int32), self._piece_versions
        return came if told is None else np.concatenate((came[: len(came) - len(told)], told))


def chunk(
    ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    version: int = -1,
    finish_reason: FinishReason | None = None,
    cached_tokens: int | None = None,
) -> Chunk:
    """Return a chunk of S tokens of the same version."""
    return Chunk(
        ids=np.asarray(ids, dtype=np.int32),
        logprobs=np.asarray(logprobs, dtype=np.float32),
        versions=np.full(len(ids), version, dtype=np.int32),
        finish_reason=finish_reason,
        cached_tokens=cached_tokens,
    )


def cut(part: Chunk, count: int) -> Chunk:
    """Return the first tokens of a chunk, as the last tokens of an answer that reached its limit."""
    beyond, versions = len(part.ids) - count, part.answer_versions
    return replace(
        part,
        ids=part.ids[:count],
        logprobs=part.logprobs[:count],
        versions=part.versions[:count],
        finish_reason=FinishReason.LENGTH,
        answer_versions=None if versions is None else versions[: len(versions) - beyond],
    )


async def whole(chunks: AsyncIterator[Chunk]) -> Chunk:
    """Return a whole answer as one chunk. Raises EngineUnreachable if it did not end, and what the engine raises."""
    return join([each async for each in chunks])


def join(chunks: Iterable[Chunk]) -> Chunk:
    """Return the chunks of a whole answer as one. Raises EngineUnreachable if the last has no finish reason."""
    sampled = Sampled()
    for each in chunks:
        sampled.add(each)
    return sampled.whole()
