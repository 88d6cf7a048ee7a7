"""Asks the servers that the operator lets graders ask."""

import asyncio
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from evener.graders.config import Endpoint
from evener.graders.port import GraderError, GraderRefused, GradingContext
from evener.proto.names import unknown

REQUEST: Final = "request.json"
RESPONSE: Final = "response.json"
MAX_ANSWER_BYTES: Final = 16 << 20
KEPT_BYTES: Final = 1 << 20
"""How much of an answer is kept as evidence."""
TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429})
"""The statuses of refusals that another try may not meet. Those from 500 on are too."""


def endpoint_of(context: GradingContext) -> Endpoint:
    """Return the endpoint that the grader's options name. Raises GraderRefused."""
    spec = context.trajectory.spec.grader
    name = spec.options.get("endpoint")
    if name is None:
        msg = f"grader `{spec.name}` has no option `endpoint`"
        raise GraderRefused(msg)
    if name not in context.allowed.endpoints:
        msg = unknown("endpoint", name, context.allowed.endpoints or ["none"], "in the evaluator's configuration (`endpoints`)")
        raise GraderRefused(msg)
    return context.allowed.endpoints[name]


async def ask(context: GradingContext, endpoint: Endpoint, url: str, body: Any) -> bytes:
    """POST a body as JSON; return the answer. Both are evidence. Raises GraderError, and GraderRefused if the server refuses the body."""
    data = msgspec.json.encode(body)
    context.evidence[REQUEST] = msgspec.json.format(data)
    headers = {"content-type": "application/json"}
    if endpoint.key_file is not None:
        headers["authorization"] = f"Bearer {await asyncio.to_thread(_key, endpoint.key_file)}"
    try:
        timeout = aiohttp.ClientTimeout(total=endpoint.seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(url, data=data, headers=headers, allow_redirects=False) as response,
        ):
            answer = await _read(response)
    except (aiohttp.ClientError, OSError) as cause:  # TimeoutError is an OSError
        msg = f"{url}: {str(cause) or type(cause).__name__}"
        raise GraderError(msg) from cause
    context.evidence[RESPONSE] = answer[:KEPT_BYTES]
    if response.status != 200:  # noqa: PLR2004 - OK
        msg = f"{url} answered {response.status}: {answer[:500].decode(errors='replace')}"
        raise (GraderError if response.status >= 500 or response.status in TRANSIENT_STATUSES else GraderRefused)(msg)  # noqa: PLR2004 - server errors
    return answer


async def _read(response: aiohttp.ClientResponse) -> bytes:
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > MAX_ANSWER_BYTES:
            msg = f"{response.url} answers with more than {MAX_ANSWER_BYTES >> 20} MiB"
            raise GraderError(msg)
    return bytes(pieces)


def _key(file: str) -> str:
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as cause:
        msg = f"cannot read the key in {file}: {cause.strerror}"
        raise GraderError(msg) from cause
