"""Authorisation: the operator's token for control endpoints, and the capability that opens one session at the gateway."""

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from evener.proto.errors import ConfigError, EvenerError
from evener.service.http import BodyRefused, error_response

Handler = Callable[[Request], Awaitable[Response]]

TOKEN_FILE: Final = "operator-token"
KEY_FILE: Final = "capability-key"


class CapabilityRefused(EvenerError):
    """This key opens no session here. Use the base URL and key that the runner handed out for this session."""


class StateUnusable(EvenerError):
    """Make the path a folder that can be written and has free space, or name another with --state or XDG_STATE_HOME."""


class Secrets(Struct, frozen=True, kw_only=True):
    """The secrets of a deployment, the same in all of its processes."""

    operator_token: str
    capability_key: bytes


class Capability(Struct, frozen=True, kw_only=True):
    """The right to make calls in one session, which the relay sends with each call."""

    session_id: str
    attempt: int
    start_id: str
    partition: int
    """The partition of SessionStarted in `sessions`."""
    offset: int
    """The offset of SessionStarted. The owner waits until it has read it."""
    expires_at: float


_capabilities: Final = msgspec.msgpack.Decoder(Capability)


def load_secrets(state: Path, *, operator_token: str | None = None, capability_key: str | None = None) -> Secrets:
    """Return the given secrets. A secret that is not given is read from `state`; at first use it is drawn and stored there (mode 0600)."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        token = operator_token or _stored(state / TOKEN_FILE)
        key = capability_key or _stored(state / KEY_FILE)
    except OSError as cause:
        msg = f"cannot use the state folder {state}: {cause.strerror}"
        raise StateUnusable(msg) from cause
    return Secrets(operator_token=token, capability_key=key.encode())


def token_ok(secret: Secrets, authorization: str | None) -> bool:
    """Return whether an Authorization header carries the operator's token (`Bearer TOKEN`), in constant time."""
    given = (authorization or "").removeprefix("Bearer ").strip()
    return hmac.compare_digest(given.encode(), secret.operator_token.encode())


def operator_route(secret: Secrets, handler: Handler) -> Handler:
    """Return the endpoint that answers 401 unless the request carries the operator's token, and `handler`'s answer otherwise."""

    async def endpoint(request: Request) -> Response:
        if not token_ok(secret, request.headers.get("authorization")):
            message = f"this endpoint wants the operator's token: Authorization: Bearer TOKEN (see {TOKEN_FILE} in the state folder)"
            return error_response(401, message, headers={"www-authenticate": "Bearer"})
        try:
            return await handler(request)
        except BodyRefused as refused:
            return error_response(refused.status, str(refused.args[0]))

    return endpoint


def seal_capability(secret: Secrets, capability: Capability) -> str:
    """Return the signed text of a capability: URL-safe, without padding."""
    body = msgspec.msgpack.encode(capability)
    return f"{_text(body)}.{_text(_sign(secret, body))}"


def open_capability(secret: Secrets, text: str, *, now: float | None = None) -> Capability:
    """Return the capability in `text`. Raises CapabilityRefused if it is forged, damaged or expired."""
    try:
        body, signature = (_bytes(part) for part in text.split("."))
        if not hmac.compare_digest(signature, _sign(secret, body)):
            msg = "capability with a wrong signature"
            raise CapabilityRefused(msg)
        capability = _capabilities.decode(body)
    except (ValueError, msgspec.DecodeError, msgspec.ValidationError) as cause:
        msg = "damaged capability"
        raise CapabilityRefused(msg) from cause
    if capability.expires_at < (time.time() if now is None else now):
        msg = f"capability of session {capability.session_id} expired"
        raise CapabilityRefused(msg)
    return capability


def _stored(path: Path) -> str:
    """Return the secret in a file. The first process that starts on the folder draws it."""
    if not path.exists():
        descriptor, drawn = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
            with suppress(FileExistsError):
                os.link(drawn, path)  # whole when it gets its name: nobody reads half a secret, or none
        finally:
            Path(drawn).unlink()
    stored = path.read_text().strip()
    if not stored:
        msg = f"{path} is empty: remove it, and a new secret is drawn"
        raise ConfigError(msg)
    return stored


def _sign(secret: Secrets, body: bytes) -> bytes:
    return hmac.new(secret.capability_key, body, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
