"""The code that the adapters of vLLM's endpoints share: streams up to their end, errors, and labels of weights."""

import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

from evener.engines.connection import CONTROL_SECONDS, PLAIN_LINK, EngineHttp, EngineLink, HttpRefusal
from evener.engines.port import HEALTH_SECONDS, Chunk, ContextOverflow, EngineError, EngineUnreachable
from evener.proto.sessions import FinishReason

PROMPT_LENGTH: Final = re.compile(r"(?:\(length |at least )(\d+)(?:\)| input tokens)")
CONTEXT_LENGTH: Final = re.compile(r"maximum (?:model length of|context length is) (\d+)")
"""Matches the message for a prompt that does not fit, by ids and by messages."""
MISSING: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""How a server answers at an endpoint that it does not have."""
DONE_DATA: Final = b"[DONE]"
"""The data of the event that ends a stream."""
FINISH_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
UNKNOWN_LOGPROB: Final = -9999.0
"""vLLM's value for a logprob that it does not have, and for minus infinity."""
VLLM_NEUTRAL: Final[dict[str, Any]] = {
    "n": 1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": False,
    "skip_special_tokens": False,
}


class VllmHttp:
    """A vLLM server that serves one model."""

    def __init__(
        self, url: str, *, silence_seconds: float = CONTROL_SECONDS, refuses_by_500: bool = False, link: EngineLink = PLAIN_LINK
    ) -> None:
        """See `EngineHttp`."""
        self._http: Final = EngineHttp(url, silence_seconds=silence_seconds, refuses_by_500=refuses_by_500, link=link)

    async def health(self, seconds: float = HEALTH_SECONDS) -> None:
        await self._http.health(seconds)

    async def tokenize(self, text: str) -> list[int]:
        answer = await self._http.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        with self._http.reading("/tokenize", answer):
            return [int(token) for token in answer["tokens"]]

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _context_length(self) -> int:
        models = await self._http.get("/v1/models")
        with self._http.reading("/v1/models", models):
            return int(models["data"][0]["max_model_len"])

    async def _post(self, path: str, body: dict[str, Any], *, samples: bool = False) -> Any:
        """Return the JSON answer to a POST. Raises ContextOverflow for a prompt that does not fit."""
        try:
            return await self._http.post(path, body, samples=samples)
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    async def _events(self, path: str, encode: Callable[[], Awaitable[bytes]]) -> AsyncGenerator[list[bytes], None]:
        """Yield the events of a streamed answer up to [DONE], in lists of those that arrived together. Raises ContextOverflow."""
        try:
            async with aclosing(self._http.events(path, encode)) as batches:
                async for data in batches:
                    done = DONE_DATA in data
                    if events := data[: data.index(DONE_DATA)] if done else data:
                        yield events
                    if done:
                        return
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    async def _to_its_end(self, path: str, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an answer, all of them, so that the connection is used again. Raises EngineUnreachable if it breaks off."""
        ended = False
        async with aclosing(chunks) as parts:
            async for part in parts:
                ended = ended or part.finish_reason is not None
                yield part
        if not ended:
            msg = f"{self._http.url}{path} ended its answer without a finish reason"
            raise EngineUnreachable(msg)

    def _event_error(self, path: str, line: bytes) -> EngineError:
        """Return the error in an event of a stream: the prompt does not fit, the request is refused, or the engine failed."""
        text = line.decode(errors="replace")
        rubbish = self._http.rubbish(path, text)
        try:
            code = json.loads(text)["error"].get("code")
        except (ValueError, KeyError, TypeError, AttributeError):
            return rubbish
        refused = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
        return overflow(text) or (rubbish if refused else EngineUnreachable(rubbish.args[0]))


def version_number(label: str) -> int:
    """Return the policy version in a label: the number at its end (`step-7`), 0 for `default`. Raises ValueError."""
    digits = re.search(r"\d+$", label)
    if digits:
        return int(digits[0])
    if label == "default":
        return 0
    msg = f"the weight version {label!r} has no number at its end"
    raise ValueError(msg)


def known_logprob(value: float) -> float:
    """Return a reported logprob, NaN for one that vLLM does not have."""
    return math.nan if value <= UNKNOWN_LOGPROB else float(value)


def overflow(text: str) -> ContextOverflow | None:
    """Return the error for a prompt that does not fit, if this error body says so."""
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
    if "maximum model length" not in message and "maximum context length" not in message:  # by ids; by messages
        return None
    asked, limit = PROMPT_LENGTH.search(message), CONTEXT_LENGTH.search(message)
    numbers = (int(asked[1]), int(limit[1])) if asked and limit else None
    return ContextOverflow(message.split(". ", maxsplit=1)[0], numbers)
