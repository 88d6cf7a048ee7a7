"""The engine port: ids in; ids, logprobs and versions out."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.proto.errors import EvenerError, Recoverable
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

PROBE: Final = "probe"
"""How request ids begin that are no calls: what the check at start asks. A scripted engine answers them from its own distribution."""


class EngineError(EvenerError):
    """The engine answered something that is not an answer. Look at its log."""


class EngineUnreachable(EngineError, Recoverable):
    """No answer from the engine. Check its URL and that its readiness probe passes."""


class EngineRefused(EngineError):
    """The engine does not sample what Evener would record, so its tokens cannot be trained. Mend what is named and start again."""


class ContextOverflow(EngineError):
    """The prompt does not fit the engine's context. Shorten the task, or serve the model with a longer context."""

    def __init__(self, message: str, numbers: tuple[int, int] | None = None) -> None:
        """`numbers`: tokens of the prompt and of the context, where the engine says them."""
        super().__init__(message)
        self.numbers = numbers


class GenerateRequest(Struct, frozen=True, kw_only=True, eq=False):
    """One sampling: T ids in, one answer out. n answers are n requests."""

    request_id: str
    ids: NDArray[np.int32]
    """int32[T], the whole context."""
    sampling: Sampling
    """`seed` is this request's own."""
    max_tokens: int
    """At least 1; already lowered to the context that is left."""
    stop_ids: tuple[int, ...] = ()
    """End-of-turn ids; the sampled one is kept."""
    together: int = 1
    """So many tokens may come in one chunk, where the engine can do that; the first and the end still come at once."""
    session: str | None = None
    """For prefix-cache affinity."""
    messages: tuple[dict[str, Any], ...] | None = None
    """For an engine on its chat path, which renders canonical messages itself: the whole history. `ids` are then not looked at."""
    tools: tuple[dict[str, Any], ...] = ()
    """Canonical tools; only with `messages`."""
    images: Mapping[str, tuple[str, bytes]] = {}
    """Media type and bytes of the images in `messages`, by their digest."""


class Chunk(Struct, frozen=True, kw_only=True, eq=False):
    """Sampled tokens, as they come: three arrays of the same length S."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """NaN where not reported."""
    versions: NDArray[np.int32]
    """-1 where the engine does not report versions, or only at the end of an answer."""
    finish_reason: FinishReason | None = None
    """Set in the last chunk, and only there."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache, where reported (last chunk)."""
    answer_versions: NDArray[np.int32] | None = None
    """Versions of all tokens of this answer, from its first on: in the last chunk of an engine that reports them only there. They
    replace those of the chunks; `whole` does it."""
    prompt_ids: NDArray[np.int32] | None = None
    """int32[T], in the first chunk of an engine that rendered the prompt itself: the ids that it conditioned on."""


class LogprobRule(Struct, frozen=True, kw_only=True):
    """For which settings the reported logprobs are those of the sampled distribution, as proven at start."""

    any_temperature: bool
    """True: logprobs are after temperature. False: only temperature 1 is exact."""
    filters: bool
    """True: after top-p, top-k and min-p too. False: exact only with all of them off."""

    def exact_for(self, sampling: Sampling) -> bool:
        """Return whether the reported logprobs are those of the distribution that these parameters sample from."""
        filtered = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
        heated = sampling.temperature != 1
        return (not heated or (self.any_temperature and sampling.temperature > 0)) and (not filtered or self.filters)


class EngineFacts(Struct, frozen=True, kw_only=True):
    """What an engine says of itself."""

    kind: str
    model: str
    context_length: int
    """Ids of prompt and answer together, for one request."""
    reports_versions: bool
    """With each token. False: only in these facts."""
    renders: bool = False
    """It wants messages, and reports the ids that it made of them."""
    vision: bool = False
    """It takes images."""
    version: int
    """The policy version that it serves now; 0 for weights that no trainer published."""
    label: str | None = None
    """What it calls its weights. None: it has no names for them."""


class Engine(Protocol):
    """A sampling server.

    All methods raise EngineUnreachable when it does not answer, and where it fails of itself: it says so, or its answer just ends.
    They raise EngineError when it refuses, or answers rubbish.
    """

    async def health(self) -> None:
        """See that it is well, without sampling."""
        ...

    async def facts(self) -> EngineFacts:
        """Ask the engine what it is."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Sample; yield at least one chunk, the last with a finish reason. Closing the iterator aborts the sampling."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text` by the engine's own tokenizer, special tokens parsed, none added."""
        ...

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        """Sample one token; return it and the reported logprobs of the `count` most likely ones (check at start)."""
        ...

    async def aclose(self) -> None:
        """Close connections; the engine itself goes on."""
        ...


class Scores(Struct, frozen=True, kw_only=True, eq=False):
    """What an engine thinks of given ids."""

    logprobs: NDArray[np.float64]
    """float64[T]: of each id after those before it, at temperature 1; NaN for the first, and where not reported."""
    version: int
    """The policy version that the answer reports."""


class WeightControl(Protocol):
    """An engine whose weights can be exchanged while its answers are under way.

    After `pause` nothing is sampled until `resume`; open answers stay, and go on from their exact ids. What was computed with
    the earlier weights is dropped by `load`: a token sampled afterwards scores equal under a full prefill of the new weights.
    Each step can be done again. All methods raise EngineUnreachable when it does not answer, EngineError when it refuses.
    """

    async def label(self) -> str:
        """Return the label that each token sampled now would carry."""
        ...

    async def paused(self) -> bool:
        """Return whether it samples nothing until `resume`."""
        ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def relabel(self, label: str) -> None:
        """Count every token sampled from now on to this label; a whole number at its end is the policy version."""
        ...

    async def load(self, location: str) -> None:
        """Exchange the weights for those in a folder that it can read, and drop everything computed with the earlier ones.

        One that fails may leave any weights, or a dead engine.
        """
        ...

    async def score(self, ids: NDArray[np.int32]) -> Scores:
        """Return the logprobs of T given ids, T at least 2. Waits while it is paused."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text` by the engine's own tokenizer, special tokens parsed, none added."""
        ...

    async def origin(self) -> str:
        """Return where it loaded its weights at its start, in its own words."""
        ...

    async def aclose(self) -> None:
        """Close connections; the engine itself goes on."""
        ...
