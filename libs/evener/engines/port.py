"""The engine port: ids go in; ids, logprobs and versions come out."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.proto.errors import EvenerError, Recoverable
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

PROBE_PREFIX: Final = "probe"
"""The prefix of request ids that are not calls but belong to the check at start. A scripted engine answers them from its own
distribution."""

HEALTH_SECONDS: Final = 10.0
"""An engine that does not answer for this long is not healthy."""


class EngineError(EvenerError):
    """The engine's answer is invalid. Look at its log."""


class EngineUnreachable(EngineError, Recoverable):
    """The engine does not answer. Check its URL and that its readiness probe passes."""


class EngineRefused(EngineError):
    """The engine does not sample what Evener would record, so its tokens cannot be trained. Mend what is named and start again."""


class ContextOverflow(EngineError):
    """The prompt does not fit the engine's context. Shorten the task, or serve the model with a longer context."""

    def __init__(self, message: str, numbers: tuple[int, int] | None = None) -> None:
        """`numbers`: the sizes of the prompt and of the context in tokens, if the engine reports them."""
        super().__init__(message)
        self.numbers = numbers


class GenerateRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A request for one answer: T ids in, one answer out. n answers take n requests."""

    request_id: str
    ids: NDArray[np.int32]
    """int32[T]: the whole context."""
    sampling: Sampling
    """The sampling parameters. `seed` is this request's own."""
    max_tokens: int
    """The limit of the answer, at least 1, already lowered to the context that is left."""
    stop_ids: tuple[int, ...] = ()
    """The end-of-turn ids. The sampled one is kept."""
    stream_interval: int = 1
    """How many tokens may come in one chunk, if the engine supports that. The first token and the end still come at once."""
    session: str | None = None
    """The session, for prefix-cache affinity."""
    messages: tuple[dict[str, Any], ...] | None = None
    """The whole history as canonical messages, for an engine that renders them itself. It ignores `ids`."""
    tools: tuple[dict[str, Any], ...] = ()
    """Canonical tools, used only with `messages`."""
    images: Mapping[str, tuple[str, bytes]] = {}
    """The media type and bytes of the images in `messages`, by digest."""


class Chunk(Struct, frozen=True, kw_only=True, eq=False):
    """Sampled tokens as they arrive: three arrays of the same length S."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """float32[S]: the logprob of each id. NaN: not reported."""
    versions: NDArray[np.int32]
    """int32[S]: the policy version of each id. -1: the engine does not report versions, or only at the end of an answer."""
    finish_reason: FinishReason | None = None
    """Why the answer ended; set in the last chunk only."""
    cached_tokens: int | None = None
    """The number of prompt tokens found in the prefix cache, if reported (last chunk)."""
    answer_versions: NDArray[np.int32] | None = None
    """The versions of all tokens of the answer, in the last chunk of an engine that reports them only there. `whole` replaces the versions
    of the other chunks with them."""
    prompt_ids: NDArray[np.int32] | None = None
    """int32[T]: the ids that the engine conditioned on, in the first chunk of an engine that rendered the prompt itself."""


class LogprobRule(Struct, frozen=True, kw_only=True):
    """The settings for which the reported logprobs are those of the sampled distribution, as proven at start."""

    any_temperature: bool
    """True: the logprobs are taken after temperature. False: only temperature 1 is exact."""
    filters: bool
    """True: they are also taken after top-p, top-k and min-p. False: they are exact only with all filters off."""

    def exact_for(self, sampling: Sampling) -> bool:
        """Return whether the reported logprobs are those of the distribution under these parameters."""
        filtered = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
        heated = sampling.temperature != 1
        return (not heated or (self.any_temperature and sampling.temperature > 0)) and (not filtered or self.filters)


class EngineFacts(Struct, frozen=True, kw_only=True):
    """An engine's report about itself."""

    context_length: int
    """The number of ids of prompt and answer together, for one request."""
    reports_versions: bool
    """Whether versions come with each token. If not, only these facts have one."""
    renders: bool = False
    """Whether the engine takes messages and reports the ids that it rendered."""
    vision: bool = False
    """Whether the engine takes images."""
    version: int
    """The policy version that the engine serves now; 0 for weights that no trainer published."""
    label: str | None = None
    """The engine's label of its weights. None: it has no labels."""


class Engine(Protocol):
    """A sampling server.

    All methods raise EngineUnreachable if it does not answer or fails: it reports a failure, or its answer breaks off. They raise
    EngineError if it refuses, or if its answer is invalid.
    """

    async def health(self, seconds: float = HEALTH_SECONDS) -> None:
        """Check that the engine is healthy, without sampling. Raises EngineUnreachable for one that does not answer within this time."""
        ...

    async def facts(self) -> EngineFacts:
        """Ask the engine for its model and settings."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Sample; yield at least one chunk, the last with a finish reason. Closing the iterator aborts the sampling."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text` by the engine's own tokenizer. Special tokens are parsed, and none are added."""
        ...

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        """Sample one token; return it with the reported logprobs of the `count` most likely ids (for the check at start)."""
        ...

    async def aclose(self) -> None:
        """Close the connections. The engine keeps running."""
        ...


class TokenScores(Struct, frozen=True, kw_only=True, eq=False):
    """The logprobs that an engine gives to known ids."""

    logprobs: NDArray[np.float64]
    """float64[T]: the logprob of each id given the ids before it, at temperature 1. NaN for the first, and where not reported."""
    version: int
    """The policy version that the answer reports."""


class WeightControl(Protocol):
    """An engine whose weights can be exchanged while it has open answers.

    Between `pause` and `resume` nothing is sampled; open answers stay open and continue from their exact ids. `load` drops everything that
    was computed with the earlier weights: a token sampled afterwards scores the same under a full prefill with the new weights. Each step
    can be repeated. All methods raise EngineUnreachable if the engine does not answer, and EngineError if it refuses.
    """

    async def label(self) -> str:
        """Return the label that each token sampled now would carry."""
        ...

    async def paused(self) -> bool:
        """Return whether the engine is paused."""
        ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def relabel(self, label: str) -> None:
        """Assign this label to every token sampled from now on. The number at its end is the policy version."""
        ...

    async def load(self, location: str) -> None:
        """Load weights from a folder that the engine can read, and drop everything computed with the earlier ones.

        A failed load may leave any weights, or a dead engine.
        """
        ...

    async def score(self, ids: NDArray[np.int32]) -> TokenScores:
        """Return the logprobs of T given ids, T at least 2. Waits while the engine is paused."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text` by the engine's own tokenizer. Special tokens are parsed, and none are added."""
        ...

    async def origin(self) -> str:
        """Return where the engine loaded its first weights from, as it says itself."""
        ...

    async def aclose(self) -> None:
        """Close the connections. The engine keeps running."""
        ...
