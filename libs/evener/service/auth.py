"""Authorisation: the tokens of principals for control endpoints, and the capability that opens one session at the gateway."""

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
import structlog
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from evener.proto.errors import ConfigError, EvenerError
from evener.service.http import BodyRefused, error_response
from evener.service.loopback import is_loopback
from evener.service.principals import OPERATOR, Principal, Principals, Role
from evener.service.state_folder import TOKEN_FILE

Handler = Callable[[Request], Awaitable[Response]]

KEY_FILE: Final = "capability-key"
NO_PRINCIPALS: Final = Principals(None)

log = structlog.get_logger()


class CapabilityRefused(EvenerError):
    """This key opens no session here. Use the base URL and key that the runner handed out for this session."""


class StateUnusable(EvenerError):
    """Make the path a folder that can be written and has free space, or name another with --state or XDG_STATE_HOME."""


class Secrets(Struct, frozen=True, kw_only=True):
    """The secrets of a deployment, the same in all of its processes."""

    operator_token: str
    capability_key: bytes
    principals: Principals = NO_PRINCIPALS
    operator_from_anywhere: bool = True
    """Whether the operator's token is taken from other machines too."""

    def principal(self, request: Request) -> Principal | None:
        """Return the principal that sent a request, by its token (`Authorization: Bearer TOKEN`). None: the token is unknown."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if hmac.compare_digest(given.encode(), self.operator_token.encode()) and (self.operator_from_anywhere or _is_from_here(request)):
            return OPERATOR
        return self.principals.find(given)


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


def load_secrets(
    state: Path, *, operator_token: str | None = None, capability_key: str | None = None, principals_file: str | None = None
) -> Secrets:
    """Return the given secrets. A secret that is not given is read from `state`; at first use it is drawn and stored there (mode 0600).

    Raises StateUnusable, PrincipalsUnusable.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
        token = operator_token or _stored(state / TOKEN_FILE)
        key = capability_key or _stored(state / KEY_FILE)
    except OSError as cause:
        msg = f"cannot use the state folder {state}: {cause.strerror}"
        raise StateUnusable(msg) from cause
    return Secrets(
        operator_token=token,
        capability_key=key.encode(),
        principals=NO_PRINCIPALS if principals_file is None else Principals(principals_file),
        operator_from_anywhere=operator_token is not None or principals_file is None,
    )


def control_route(secret: Secrets, handler: Handler, role: Role = Role.ADMIN, *, quiet: bool = False) -> Handler:
    """Return the endpoint that answers 401 to an unknown caller, 403 to a principal of a lesser role, and `handler`'s answer otherwise.

    `principal_of` returns the principal to the handler. Requests that change something are logged, unless there are so many of them that
    they are to be `quiet`.
    """

    async def endpoint(request: Request) -> Response:
        principal = secret.principal(request)
        if principal is None:
            message = f"this endpoint needs a token: Authorization: Bearer TOKEN (the operator's is {TOKEN_FILE} in the state folder)"
            return error_response(401, message, headers={"www-authenticate": "Bearer"})
        with structlog.contextvars.bound_contextvars(principal=principal.name, team=principal.team):
            if not principal.role.covers(role):
                log.warning("request_forbidden", method=request.method, path=request.url.path, needed=role)
                return error_response(403, f"this needs the role {role}, and {principal.name} of team {principal.team} is {principal.role}")
            request.state.principal = principal
            try:
                answer = await handler(request)
            except BodyRefused as refused:
                answer = error_response(refused.status, str(refused.args[0]))
            if request.method != "GET" and not quiet:
                log.info("request", method=request.method, path=request.url.path, status=answer.status_code)
            return answer

    return endpoint


def principal_of(request: Request) -> Principal:
    """Return the principal that `control_route` let in."""
    principal: Principal = request.state.principal
    return principal


def _is_from_here(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


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
                os.link(drawn, path)  # complete before it gets its name, so that no process reads half a secret
        finally:
            Path(drawn).unlink()
    stored = path.read_text().strip()
    if not stored:
        msg = f"{path} is empty: remove it, and a new secret is generated"
        raise ConfigError(msg)
    return stored


def _sign(secret: Secrets, body: bytes) -> bytes:
    return hmac.new(secret.capability_key, body, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
