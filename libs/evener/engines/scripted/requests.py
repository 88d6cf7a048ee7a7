"""The requests of the scripted engine, and its refusals, which are those of vLLM 0.32. Pure."""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, defstruct

from evener.engines.port import PROBE_PREFIX
from evener.proto.spec import Sampling


class SamplingParams(Struct, kw_only=True):
    """The sampling parameters that are obeyed. Others are ignored, because the script decides the answer."""

    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: str | list[str] | None = None
    """Refused: a script decides where its answers end."""
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    stream_interval: Annotated[int, Meta(ge=1)] | None = None

    def sampling(self) -> Sampling:
        """Return the parameters that shape the distribution."""
        top_k = max(self.top_k, 0)  # vLLM takes -1 for "off" too
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=top_k, min_p=self.min_p, seed=self.seed)


Id = Annotated[int, Meta(ge=0)]


class StreamOptions(Struct, kw_only=True):
    """What a stream reports besides tokens."""

    include_usage: bool = False


class GenerateBody(Struct, kw_only=True):
    """A body of /inference/v1/generate, into which the other endpoints' bodies are converted."""

    token_ids: list[Id]
    sampling_params: SamplingParams
    request_id: str = ""
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def probe(self) -> bool:
        """Whether the request belongs to the check at start, and is not a call."""
        return self.request_id.startswith(PROBE_PREFIX)

    @property
    def usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class Openly(Struct, kw_only=True):
    """The common fields of the OpenAI-style endpoints. None: vLLM's default."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    stream_interval: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str = ""

    def request(self, ids: list[int], *, max_tokens: int | None, logprobs: int | None) -> GenerateBody:
        """Return the equivalent request by ids."""
        given = {name: value for name in SamplingParams.__struct_fields__ if (value := getattr(self, name, None)) is not None}
        return GenerateBody(
            token_ids=ids,
            sampling_params=SamplingParams(**given | {"max_tokens": max_tokens, "logprobs": logprobs}),
            request_id=self.request_id,
            model=self.model,
            stream=bool(self.stream),
            stream_options=self.stream_options,
        )


class ChatRequest(Openly, kw_only=True):
    """A body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def calls_tools(self) -> bool:
        """Whether the answer reports tool calls as such."""
        return bool(self.tools) and self.tool_choice != "none"

    def by_ids(self, ids: list[int]) -> GenerateBody:
        """Return the equivalent request by ids."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.request(ids, max_tokens=limit, logprobs=(self.top_logprobs or 0) if self.logprobs else None)


class CompletionRequest(Openly, kw_only=True):
    """A body of /v1/completions, with ids as its prompt."""

    prompt: list[Id]
    logprobs: int | None = None

    def by_ids(self) -> GenerateBody:
        """Return the equivalent request by ids. vLLM samples 16 tokens by default."""
        return self.request(self.prompt, max_tokens=16 if self.max_tokens is None else self.max_tokens, logprobs=self.logprobs)


class TokenizeRequest(Struct, kw_only=True):
    """A body of /tokenize: a text or a chat."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True


CHATS: Final = msgspec.json.Decoder(ChatRequest)
COMPLETIONS: Final = msgspec.json.Decoder(CompletionRequest)
TOKENIZE_REQUESTS: Final = msgspec.json.Decoder(TokenizeRequest)
_requests: Final = msgspec.json.Decoder(GenerateBody)


class Refusal(Exception):
    """Raised to answer the request with an error body."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class UnknownId(Refusal):
    """A prompt has an id outside the vocabulary."""

    def __init__(self, request: GenerateBody, unknown: int) -> None:
        super().__init__(400, f"Token id {unknown} is out of vocabulary")
        self.stream = request.stream


Body = TypeVar("Body")


def read_body(body: bytes, form: msgspec.json.Decoder[Body]) -> Body:
    """Return the fields of a body. Raises Refusal as vLLM does."""
    try:
        return form.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except msgspec.DecodeError as error:
        message = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', 'ctx': {str(error)!r}}}"
        raise Refusal(400, message, "Bad Request", "body.1") from error


def reader(vocabulary: int) -> Callable[[bytes], GenerateBody]:
    """Return a reader of requests with ids below `vocabulary`. It raises what `read_body` raises, and UnknownId.

    The decoder compares the ids: a loop over a long prompt would cost as much as all its sampling.
    """
    known = Annotated[int, Meta(ge=0, lt=vocabulary)]
    checked = defstruct("KnownIds", [("token_ids", list[known])], bases=(GenerateBody,), kw_only=True)
    decoder = msgspec.json.Decoder(cast("type[GenerateBody]", checked))

    def read(body: bytes) -> GenerateBody:
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError:
            request = read_body(body, _requests)
        raise UnknownId(request, next(token for token in request.token_ids if token >= vocabulary))

    return read


def check_model(asked: str | None, served: str) -> None:
    """Raise Refusal if the requested model is not the served one."""
    if asked not in {None, served}:
        message = f"The model `{asked}` does not exist. Valid aliases: {served}."
        raise Refusal(404, message, "NotFoundError", "model")


def check(request: GenerateBody, model: str) -> None:
    """Raise Refusal for parameters that vLLM refuses."""
    params = request.sampling_params
    check_model(request.model, model)
    if params.temperature < 0:
        message = f"temperature must be non-negative, got {params.temperature}. (parameter=temperature, value={params.temperature})"
        raise Refusal(400, message, param="temperature")
    if params.max_tokens is not None and params.max_tokens < 1:
        message = f"max_tokens must be at least 1, got {params.max_tokens}. (parameter=max_tokens, value={params.max_tokens})"
        raise Refusal(400, message, param="max_tokens")
    if params.stop:
        message = "stop strings are not supported on a --tokens-only server because detokenization is disabled. Use stop_token_ids."
        raise Refusal(400, message)


def check_prompt(length: int, context: int) -> None:
    """Raise Refusal for a prompt that is empty or does not fit."""
    if length == 0:
        raise Refusal(400, "The decoder prompt cannot be empty")
    if length >= context:
        message = (
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer than the maximum "
            f"model length of {context}. Make sure that `max_model_len` is no smaller than the number of text tokens (prompt + requested "
            "output tokens)."
        )
        raise Refusal(400, message)


def check_chat(length: int, context: int) -> None:
    """Raise Refusal for messages that do not fit. vLLM stops counting their tokens one beyond the limit."""
    if length >= context:
        counted = min(length, context + 1)
        message = (
            f"This model's maximum context length is {context} tokens. However, your prompt contains at least {counted} input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={counted})"
        )
        raise Refusal(400, message, param="input_tokens")


def _invalid(said: str) -> Refusal:
    """Return pydantic's refusal of a field, derived from msgspec's message: `... - at `$.a[0]`` or `... missing required field `a``."""
    quoted = said.split("`")[1::2]
    missing = "missing required field" in said
    path = quoted[-1][1:] if quoted and quoted[-1].startswith("$") else ""
    at = [part for part in path.replace("[", ".").replace("]", "").split(".") if part]
    if at[:1] == ["token_ids"]:  # the list as a whole
        at = at[:1]
    loc = ".".join(["body", *at, *(quoted[:1] if missing else [])])
    what = "{'type': 'missing', 'loc': %r, 'msg': 'Field required'}" if missing else "{'type': 'type_error', 'loc': %r, 'msg': %r}"
    detail = what % (loc if missing else (loc, said))
    return Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", loc)
