"""The HTTP endpoints of the scripted engine: vLLM's, and those of the script."""

from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from evener.engines.scripted.app import ScriptedApp
from evener.engines.scripted.call import send_body
from evener.engines.scripted.control import MODES
from evener.engines.scripted.requests import TOKENIZE_REQUESTS, Refusal, read_body
from evener.engines.scripted.script import GATE, ScriptError, read_script
from evener.engines.scripted.wire import encode, model_card

VLLM_VERSION: Final = "0.32.0"
"""The version of vLLM after which the answers are modelled."""


class NewVersion(Struct):
    """A body of /update_weight_version."""

    new_version: str


class Remote(Struct):
    """A body of /collective_rpc."""

    method: str
    kwargs: dict[str, Any] = {}


class Aborted(Struct):
    """A body of /abort_requests. Without ids it means all requests."""

    request_ids: tuple[str, ...] = ()


_versions: Final = msgspec.json.Decoder(NewVersion)
_remotes: Final = msgspec.json.Decoder(Remote)
_aborted: Final = msgspec.json.Decoder(Aborted)


class ScriptedEndpoints:
    """The application, whose handlers are named like their paths. What samples is plain ASGI, because benches depend on its speed."""

    def __init__(self, engine: ScriptedApp) -> None:
        self._engine: Final = engine
        routes = [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/version", self.version),
            Route("/pause", self.pause, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/is_paused", self.is_paused),
            Route("/abort_requests", self.abort_requests, methods=["POST"]),
            Route("/update_weight_version", self.update_weight_version, methods=["POST"]),
            Route("/weight_info", self.weight_info),
            Route("/collective_rpc", self.collective_rpc, methods=["POST"]),
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            Route("/script", self.script, methods=["POST"]),
            Route("/ledger", self.ledger),
            Route("/go", self.go, methods=["POST"]),
            Route("/gates", self.gates),
        ]
        self._other: Final = Starlette(routes=routes, exception_handlers={HTTPException: _detail, Refusal: _refused})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        sample = self._engine.sampling.get(scope["path"]) if scope["method"] == "POST" else None
        if sample is None:
            await self._other(scope, receive, send)
            return
        try:
            await sample(await _body(receive), receive, send)
        except Refusal as refusal:
            await send_body(send, refusal.status, encode(refusal.body))

    async def tokenize(self, http: HttpRequest) -> Response:
        asked = read_body(await http.body(), TOKENIZE_REQUESTS)
        if asked.messages is not None:
            tokens = self._engine.chat.render(asked.messages, asked.tools)
        elif asked.prompt is not None:
            tokens = self._engine.tokenizer.encode(asked.prompt, add_special_tokens=asked.add_special_tokens).ids
        else:
            raise Refusal(400, "1 validation error:\n  {'type': 'missing', 'loc': 'body.prompt'}", "Bad Request", "body.prompt")
        return JSONResponse({"count": len(tokens), "max_model_len": self._engine.context, "tokens": tokens, "token_strs": None})

    async def models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [model_card(self._engine.model, self._engine.context)]})

    async def health(self, _: HttpRequest) -> Response:
        return Response()

    async def version(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": VLLM_VERSION})

    async def pause(self, http: HttpRequest) -> Response:
        asked = http.query_params.get("mode", "abort")
        mode = next((mode for mode in MODES if mode == asked), None)
        if mode is None:
            expected = "'abort', 'wait' or 'keep'"
            detail = (
                f"'loc': 'query.mode', 'msg': \"Input should be {expected}\", 'input': {asked!r}, 'ctx': {{'expected': \"{expected}\"}}"
            )
            raise Refusal(400, f"1 validation error:\n  {{'type': 'literal_error', {detail}}}", "Bad Request", "query.mode")
        await self._engine.control.pause(mode)
        return JSONResponse({"status": "paused"})

    async def resume(self, _: HttpRequest) -> Response:
        self._engine.control.resume()
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, _: HttpRequest) -> Response:
        return JSONResponse({"is_paused": self._engine.control.paused is not None})

    async def abort_requests(self, http: HttpRequest) -> Response:
        named = read_body(await http.body(), _aborted).request_ids
        return JSONResponse({"status": "aborted", "aborted": self._engine.control.abort(named)})

    async def update_weight_version(self, http: HttpRequest) -> Response:
        label = read_body(await http.body(), _versions).new_version
        self._engine.control.label = label
        return JSONResponse({"success": True, "new_version": label})

    async def weight_info(self, _: HttpRequest) -> Response:
        return JSONResponse({"weight_version": self._engine.control.label})

    async def collective_rpc(self, http: HttpRequest) -> Response:
        """Obey `reload_weights` only. It selects another distribution, always the same one for a folder."""
        asked = read_body(await http.body(), _remotes)
        if asked.method != "reload_weights" or self._engine.reload == "refuse":
            raise Refusal(500, f"the engine does not {asked.method}", "InternalServerError")
        if self._engine.reload == "obey" and "weights_path" in asked.kwargs:
            self._engine.control.load(str(asked.kwargs["weights_path"]), self._engine.model)
        return JSONResponse({"results": [None]})

    async def reset_prefix_cache(self, http: HttpRequest) -> Response:
        """Refuse while answers are sampled, whose context is in the cache, unless they are prefilled again, as after a pause."""
        anew = http.query_params.get("reset_running_requests") == "true"
        return JSONResponse({"success": anew or not self._engine.control.sampling})

    async def script(self, http: HttpRequest) -> Response:
        try:
            self._engine.play(read_script(await http.body()))
        except ScriptError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        return Response(status_code=204)

    async def ledger(self, _: HttpRequest) -> Response:
        return Response(encode(self._engine.ledger.entries), media_type="application/json")

    async def go(self, http: HttpRequest) -> Response:
        """Take `?gate=NAME` (default `go`), and `?times=N` (default 1) or `?times=all`."""
        times = http.query_params.get("times", "1")
        if times != "all" and not times.isdecimal():
            raise Refusal(400, f"times is a number or all, not {times!r}", param="times")
        self._engine.control.go(http.query_params.get("gate", GATE), None if times == "all" else int(times))
        return Response(status_code=204)

    async def gates(self, _: HttpRequest) -> Response:
        return Response(encode(self._engine.control.gates), media_type="application/json")


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _detail(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for it)
    return JSONResponse({"detail": error.detail}, error.status_code)


async def _refused(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 (registered for it)
    return JSONResponse(error.body, error.status)
