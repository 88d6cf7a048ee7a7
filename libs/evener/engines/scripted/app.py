"""The HTTP endpoints of the scripted engine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer

from evener.engines.port import PROBE
from evener.engines.scripted import wire
from evener.engines.scripted.answer import Answer
from evener.engines.scripted.call import Call, CuttableStream
from evener.engines.scripted.distribution import Distribution
from evener.engines.scripted.ledger import Ledger
from evener.engines.scripted.script import Player, Rule, Script, ScriptError, read_script, spell

MODEL: Final = "policy"
CONTEXT: Final = 8192
END_OF_TURN: Final = "<|im_end|>"
VERSION: Final = "0.32.0"
"""Of the vLLM whose answers these are modelled on."""


class ScriptedApp:
    """The engine's state and its endpoints."""

    def __init__(
        self,
        script: Script,
        tokenizer: Tokenizer,
        *,
        ledger: Path | None = None,
        model: str = MODEL,
        context: int = CONTEXT,
        end_of_turn: str = END_OF_TURN,
    ) -> None:
        """`context`: ids of prompt and answer together; `end_of_turn`: the special token that ends what the script says."""
        end_id = tokenizer.token_to_id(end_of_turn)
        if end_id is None:
            msg = f"the tokenizer has no token {end_of_turn}, which ends a turn"
            raise ScriptError(msg)
        self.ledger: Final = Ledger(ledger)
        self.version = "default"
        self._player = Player(script)
        self._tokenizer = tokenizer
        self._model = model
        self._context = context
        self._end_id: int = end_id
        self._distribution = Distribution(tokenizer.get_vocab_size())
        self.asgi: Final = Starlette(routes=self._routes(), exception_handlers={HTTPException: _detail})

    def play(self, script: Script) -> None:
        """Replace the script; its calls are counted from 1 again."""
        self._player = Player(script)

    def _routes(self) -> list[Route]:
        return [
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", _health),
            Route("/version", _version),
            Route("/update_weight_version", self._update_version, methods=["POST"]),
            Route("/script", self._replace, methods=["POST"]),
            Route("/ledger", self._entries),
        ]

    async def _generate(self, http: HttpRequest) -> Response:
        try:
            request = wire.read_request(await http.body(), self._model)
        except wire.Refusal as refusal:
            return JSONResponse(refusal.body, refusal.status)
        if unusable := wire.unusable_prompt(request, self._distribution.size, self._context):
            if not request.stream:
                return JSONResponse(unusable.body, unusable.status)
            return StreamingResponse(_refused(unusable), media_type="text/event-stream")
        probe = request.request_id.startswith(PROBE)
        rule = None if probe else self._player.next_rule(self._tokenizer.decode(request.token_ids, skip_special_tokens=False))
        if rule is not None and isinstance(rule.fail, int):
            failure = wire.Refusal(rule.fail, "the script says so", "InternalServerError")
            return JSONResponse(failure.body, failure.status)
        call = Call(request, self._answers(request, rule), self.ledger, probe=probe)
        return CuttableStream(call.events()) if request.stream else await call.unless_gone(http, self._model)

    def _answers(self, request: wire.Request, rule: Rule | None) -> list[Answer]:
        said = None if rule is None else spell(rule, self._tokenizer, self._end_id)
        room = self._context - len(request.token_ids)
        return [
            Answer(
                request,
                distribution=self._distribution,
                label=lambda: self.version,
                end_id=self._end_id,
                room=room,
                said=said,
                rule=rule,
                choice=choice,
            )
            for choice in range(request.sampling_params.n)
        ]

    async def _tokenize(self, http: HttpRequest) -> Response:
        try:
            prompt = msgspec.json.decode(await http.body(), type=dict[str, Any])["prompt"]
            tokens = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        except (msgspec.MsgspecError, KeyError, TypeError) as cause:
            refusal = wire.Refusal(400, f"1 validation error: {cause!r}", "Bad Request", "body.prompt")
            return JSONResponse(refusal.body, refusal.status)
        return JSONResponse({"count": len(tokens), "max_model_len": self._context, "tokens": tokens, "token_strs": None})

    async def _models(self, http: HttpRequest) -> Response:  # noqa: ARG002 (a route's handler)
        return JSONResponse({"object": "list", "data": [wire.model_card(self._model, self._context)]})

    async def _update_version(self, http: HttpRequest) -> Response:
        self.version = str((await http.json())["new_version"])
        return JSONResponse({"success": True, "new_version": self.version})

    async def _replace(self, http: HttpRequest) -> Response:
        try:
            self.play(read_script(await http.body()))
        except ScriptError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        return Response(status_code=204)

    async def _entries(self, http: HttpRequest) -> Response:  # noqa: ARG002 (a route's handler)
        return Response(msgspec.json.encode(self.ledger.entries), media_type="application/json")


async def _refused(refusal: wire.Refusal) -> AsyncIterator[bytes]:
    """An error in a stream of status 200."""
    yield wire.event(refusal.body)
    yield wire.event(b"[DONE]")


async def _detail(http: HttpRequest, error: Exception) -> Response:  # noqa: ARG001 (a handler)
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for it)
    return JSONResponse({"detail": error.detail}, error.status_code)


async def _health(http: HttpRequest) -> Response:  # noqa: ARG001 (a route's handler)
    return Response()


async def _version(http: HttpRequest) -> Response:  # noqa: ARG001 (a route's handler)
    return JSONResponse({"version": VERSION})
