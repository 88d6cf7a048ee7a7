"""A request while it is being answered, streamed or whole, until its client leaves."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from evener.engines.scripted import wire
from evener.engines.scripted.answer import Answer, Cut
from evener.engines.scripted.ledger import Entry, Ledger


class Call:
    """One request and its answers; however it ends, the ledger has it."""

    def __init__(self, request: wire.Request, answers: Sequence[Answer], ledger: Ledger, *, probe: bool) -> None:
        self._request: Final = request
        self._answers: Final = answers
        self._ledger: Final = ledger
        self._probe: Final = probe
        self._at: Final = time.time()
        self._id: Final = request.request_id or secrets.token_hex(8)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a stream. Raises Cut where the script closes the connection."""
        logprobs = self._request.sampling_params.logprobs is not None
        self._ledger.open += 1
        try:
            for index, answer in enumerate(self._answers):
                async with aclosing(answer.sample()) as tokens:
                    async for token in tokens:
                        end = answer.end if token is answer.tokens[-1] else None
                        yield wire.stream_event(self._id, index, [token], end, answer.labels, logprobs=logprobs)
                if not answer.tokens:
                    yield wire.stream_event(self._id, index, [], answer.end, [], logprobs=logprobs)
            if self._request.stream_options and self._request.stream_options.include_usage:
                yield wire.usage_event(self._id, len(self._request.token_ids), sum(len(answer.tokens) for answer in self._answers))
            yield wire.event(b"[DONE]")
        finally:
            self._record()

    async def unless_gone(self, http: HttpRequest, model: str) -> Response:
        """Return the whole answer; stop sampling when the client leaves."""
        answering = asyncio.ensure_future(self._whole(model))
        gone = asyncio.ensure_future(_gone(http))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else Response()
        except Cut:
            return CutOff()
        finally:
            answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _whole(self, model: str) -> Response:
        self._ledger.open += 1
        try:
            for answer in self._answers:
                async with aclosing(answer.sample()) as tokens:
                    async for _ in tokens:
                        pass
        finally:
            self._record()
        answers = [(answer.tokens, answer.end, answer.labels) for answer in self._answers if answer.end]
        return JSONResponse(wire.whole_body(self._request, self._id, model, answers))

    def _record(self) -> None:
        self._ledger.open -= 1
        for answer in self._answers:
            entry = Entry(
                request_id=self._request.request_id,
                fed_ids=tuple(self._request.token_ids),
                sampled_ids=tuple(token.id for token in answer.tokens),
                logprobs=tuple(token.logprob for token in answer.tokens),
                versions=tuple(answer.labels),
                at=self._at,
                aborted=answer.end is None,
                probe=self._probe,
            )
            self._ledger.add(entry)


class CuttableStream(StreamingResponse):
    """A stream that the script may cut: the server closes the connection of an answer without an end."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except Cut:
            pass
        finally:
            await self._events.aclose()


class CutOff(Response):
    """An answer that has a beginning only."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (an ASGI application)
        await send({"type": "http.response.start", "status": self.status_code, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
