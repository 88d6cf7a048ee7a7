"""Reads a harness's request."""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct
from opentelemetry.context import Context
from opentelemetry.propagate import extract

from evener.dialects.canonical import CanonicalRequest, Dialect, Head, Overflow, RequestError
from evener.proto.ids import answer_identity
from evener.proto.reasons import CallFailure
from evener.proto.relay import REPEATS, REQUEST_ID, STARTED, is_marked
from evener.proto.spec import Quirks
from evener.provider_gateway.threads import READING
from evener.tokens.digests import message_digest

TRACEPARENT: Final = "traceparent"
READ_AT_ONCE_BYTES: Final = 64 << 10
"""A larger body is read in a thread. The worst of these takes 16 ms."""


class ParsedRequest(Struct, frozen=True, kw_only=True, eq=False):
    """The request, with what its headers and its relay say about it."""

    request_id: str
    dialect: Dialect
    canonical: CanonicalRequest
    body_digest: str
    started: bool = False
    """Whether the headers of its answer have left, so that an error is an event of the stream."""
    marked_retry: bool = False
    """Whether its client marks it as a retry."""
    repeats: str | None = None
    """The failed request that it repeats, according to the relay."""
    sub_agent: bool = False
    """Whether the client says that a sub-agent asks."""
    trace: Context | None = None
    """The trace context of the attempt, as the relay sends it."""

    def head(self, prompt_tokens: int) -> Head:
        """Return what the events of its stream say before anything is sampled."""
        answer_id, created = answer_identity(self.request_id)
        return Head(answer_id=answer_id, created=created, model=self.canonical.model, prompt_tokens=prompt_tokens)


async def read_request(dialect: Dialect, path: str, body: bytes, headers: Mapping[str, str], quirks: Quirks) -> ParsedRequest:
    """Return the request in a body. Raises RequestError. A large body is read in a thread."""
    if len(body) > READ_AT_ONCE_BYTES:
        parsed, digest = await READING.run(_read, dialect, path, body)
    else:
        parsed, digest = _read(dialect, path, body)
    return ParsedRequest(
        request_id=headers[REQUEST_ID],
        dialect=dialect,
        canonical=parsed,
        body_digest=digest,
        started=STARTED in headers,
        marked_retry=is_marked(headers, quirks.retry_header),
        repeats=headers.get(REPEATS),
        sub_agent=is_marked(headers, quirks.sub_agent_header),
        trace=extract(headers) if TRACEPARENT in headers else None,
    )


def _read(dialect: Dialect, path: str, body: bytes) -> tuple[CanonicalRequest, str]:
    parsed = dialect.parse(path, body)
    return parsed, body_digest(parsed)


def body_digest(request: CanonicalRequest) -> str:
    """Return the digest of a request. Equal requests have equal digests."""
    messages = request.digests or tuple(map(message_digest, request.messages))
    digested = (request.model, messages, request.tools, request.n, request.max_tokens, dict(request.requested_params))
    return hashlib.sha256(msgspec.json.encode(digested, order="deterministic")).hexdigest()


def too_long(request: ParsedRequest, message: str, overflow: Overflow | None) -> RequestError:
    """Return the error for a prompt that does not fit the context."""
    reason = CallFailure.CONTEXT_OVERFLOW
    return RequestError(message, field=request.dialect.history, kind="context_length_exceeded", overflow=overflow, reason=reason)
