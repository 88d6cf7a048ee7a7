"""Answers a request, streamed or whole, until its client disconnects."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from starlette.types import Receive, Send

from evener.engines.scripted.answer import Disconnect, ScriptedAnswer
from evener.engines.scripted.control import Control
from evener.engines.scripted.ledger import Ledger, LedgerEntry
from evener.engines.scripted.requests import GenerateBody
from evener.engines.scripted.wire import Form, StreamForm

JSON_TYPE: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream; charset=utf-8"


class ScriptedCall:
    """One request and its answers. However it ends, the ledger records it."""

    def __init__(
        self,
        request: GenerateBody,
        answers: Sequence[ScriptedAnswer],
        form: Form,
        ledger: Ledger,
        control: Control,
        *,
        stream: StreamForm | None,
    ) -> None:
        """`stream`: the form of a stream, if one was requested."""
        self._request: Final = request
        self._answers: Final = answers
        self._form: Final = form
        self._stream_form: Final = stream
        self._ledger: Final = ledger
        self._control: Final = control
        self._at: Final = time.time()

    async def respond(self, receive: Receive, send: Send) -> None:
        """Answer; stop sampling when the client disconnects."""
        if all(answer.immediate for answer in self._answers):
            await self._answer(send)
            return
        answering = asyncio.ensure_future(self._answer(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, send: Send) -> None:
        self._ledger.open += 1
        try:
            await (self._whole(send) if self._stream_form is None else self._stream(send, self._stream_form))
        except Disconnect:
            if self._stream_form is None:  # an answer that has a beginning only
                await send_start(send, 200, JSON_TYPE)
                await send({"type": "http.response.body", "body": b"{", "more_body": True})
        finally:
            self._control.leave(self._answers)
            self._ledger.open -= 1
            self._record()

    async def _stream(self, send: Send, form: StreamForm) -> None:
        """Send parts that are due together in one write, as separate events."""
        await send_start(send, 200, EVENT_STREAM)
        await self._control.enter(self._answers)
        opening = form.opening()
        for answer in self._answers:
            async with aclosing(answer.sample()) as batches:
                async for parts in batches:
                    events = [opening, *(form.part(part) for part in parts)]
                    opening = b""
                    more = parts[-1].end is None or answer is not self._answers[-1]
                    if not more:
                        events.append(form.closing(sum(len(each.tokens) for each in self._answers)))
                    await send({"type": "http.response.body", "body": b"".join(events), "more_body": more})

    async def _whole(self, send: Send) -> None:
        await self._control.enter(self._answers)
        for answer in self._answers:
            async with aclosing(answer.sample()) as batches:
                async for _ in batches:
                    pass
        await send_body(send, 200, self._form.whole([answer.whole() for answer in self._answers]))

    def _record(self) -> None:
        for answer in self._answers:
            entry = LedgerEntry(
                request_id=self._request.request_id,
                fed_ids=tuple(self._request.token_ids),
                sampled_ids=tuple([token.token_id for token in answer.tokens]),
                logprobs=tuple([token.logprob for token in answer.tokens]),
                versions=tuple(answer.labels),
                at=self._at,
                aborted=answer.end is None or answer.end.finish_reason == "abort",
                probe=self._request.probe,
            )
            self._ledger.add(entry)


async def send_start(send: Send, status: int, kind: bytes, length: int | None = None) -> None:
    """Send the head of an answer."""
    headers = [(b"content-type", kind)] + ([] if length is None else [(b"content-length", str(length).encode())])
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, status: int, body: bytes, kind: bytes = JSON_TYPE) -> None:
    """Send a whole answer."""
    await send_start(send, status, kind, len(body))
    await send({"type": "http.response.body", "body": body})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
