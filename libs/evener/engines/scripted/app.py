"""The scripted engine: its state, and how requests for an answer are served."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.types import Receive, Send
from tokenizers import Tokenizer

from evener.engines.scripted import requests
from evener.engines.scripted.answer import ScriptedAnswer, Speed
from evener.engines.scripted.call import EVENT_STREAM, ScriptedCall, send_body
from evener.engines.scripted.chat import Chat
from evener.engines.scripted.control import Control
from evener.engines.scripted.distribution import CONTEXT_IDS, distribution
from evener.engines.scripted.ledger import Ledger
from evener.engines.scripted.player import Player
from evener.engines.scripted.prompt import Prompt
from evener.engines.scripted.requests import GenerateBody, Refusal, UnknownId
from evener.engines.scripted.script import Script, ScriptError, Step
from evener.engines.scripted.spelling import Speller
from evener.engines.scripted.unfinished import Unfinished
from evener.engines.scripted.wire import DONE_EVENT, Form, StreamForm, WireToken, event
from evener.engines.scripted.wire_chat import ChatForm, CompletionForm
from evener.engines.scripted.wire_generate import GenerateForm
from evener.templates.jinja import ChatTemplate
from evener.templates.pieces import TokenBytes

MODEL_NAME: Final = "policy"
MAX_CONTEXT: Final = 8192
END_OF_TURN: Final = "<|im_end|>"
ANSWER_OPENING: Final = "<|im_start|>assistant"


class ScriptedApp:
    """The engine's state. `sampling` has the endpoints that sample, by path."""

    def __init__(
        self,
        script: Script,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None = None,
        ledger: Path | None = None,
        keep: int | None = None,
        model: str = MODEL_NAME,
        context: int = MAX_CONTEXT,
        end_of_turn: str = END_OF_TURN,
        answer: str = ANSWER_OPENING,
        speed: Speed = Speed(),  # noqa: B008 (frozen)
    ) -> None:
        """See `scripted_engine`. Raises ScriptError."""
        end_id = tokenizer.token_to_id(end_of_turn)
        if end_id is None:
            msg = f"the tokenizer has no token {end_of_turn}, which ends a turn"
            raise ScriptError(msg)
        self.ledger = Ledger(ledger, keep)
        self.control = Control()
        self.model = model
        self.context = context
        self.tokenizer = tokenizer
        self.chat = Chat(tokenizer, template)
        self._pieces: Final = TokenBytes(tokenizer)
        self._special: Final = frozenset(id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        self._end_id: Final[int] = end_id
        self._header: Final = tokenizer.encode(answer, add_special_tokens=False).ids
        self._distribution: Final = distribution(tokenizer.get_vocab_size())
        self._read: Final = requests.reader(self._distribution.size)
        self._speed: Final = speed
        self.play(script)
        self.sampling: Final[dict[str, Callable[[bytes, Receive, Send], Awaitable[None]]]] = {
            "/inference/v1/generate": self._generate,
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._complete,
        }

    def play(self, script: Script) -> None:
        """Replace the script, whose calls are counted from 1. Raises ScriptError, and then changes nothing."""
        speller = Speller(self.tokenizer, self._end_id)
        speller.check(script)
        self._speller, self._player, self._unfinished = speller, Player(script), Unfinished()
        self.reload = script.reload

    async def _generate(self, body: bytes, receive: Receive, send: Send) -> None:
        stream = False
        try:
            request = self._read(body)
            requests.check(request, self.model)
            stream = request.stream
            requests.check_prompt(len(request.token_ids), self.context)
        except Refusal as refusal:
            if not (stream or (isinstance(refusal, UnknownId) and refusal.stream)):
                raise
            await send_body(send, 200, event(refusal.body) + DONE_EVENT, EVENT_STREAM)
            return
        form = GenerateForm(request, request_id=_name(request), model=self.model, scores=lambda: self._scores(request.token_ids))
        await self._respond(request, form, receive, send, stream=form if request.stream else None)

    async def _chat(self, body: bytes, receive: Receive, send: Send) -> None:
        chat = requests.read_body(body, requests.CHATS)
        requests.check_model(chat.model, self.model)
        request = chat.by_ids(self.chat.render(chat.messages, chat.tools))
        requests.check(request, self.model)
        requests.check_chat(len(request.token_ids), self.context)
        form = ChatForm(chat, request, request_id=_name(request), model=self.model, pieces=self._pieces, special=self._special)
        await self._respond(request, form, receive, send, stream=form if request.stream else None)

    async def _complete(self, body: bytes, receive: Receive, send: Send) -> None:
        asked = requests.read_body(body, requests.COMPLETIONS)
        request = asked.by_ids()
        requests.check(request, self.model)
        if request.stream:
            raise Refusal(400, "the scripted engine streams chats and /inference/v1/generate only", param="stream")
        unknown = next((token for token in request.token_ids if token >= self._distribution.size), None)
        if unknown is not None:
            raise UnknownId(request, unknown)
        requests.check_prompt(len(request.token_ids), self.context)
        form = CompletionForm(asked, request, request_id=_name(request), model=self.model, pieces=self._pieces)
        await self._respond(request, form, receive, send)

    async def _respond(self, request: GenerateBody, form: Form, receive: Receive, send: Send, *, stream: StreamForm | None = None) -> None:
        step, said, all_said = self._line(request)

        def on_abort(tokens: Sequence[WireToken]) -> None:
            if step is not None:
                self._unfinished.note(request.token_ids, [token.token_id for token in tokens], step, all_said)

        answers = [
            ScriptedAnswer(
                request,
                distribution=self._distribution,
                control=self.control,
                speed=self._speed,
                end_id=self._end_id,
                room=self.context - len(request.token_ids),
                step=step,
                said=said,
                choice=choice,
                on_abort=on_abort,
            )
            for choice in range(request.sampling_params.n)
        ]
        await ScriptedCall(request, answers, form, self.ledger, self.control, stream=stream).respond(receive, send)

    def _line(self, request: GenerateBody) -> tuple[Step | None, Sequence[int] | None, Sequence[int]]:
        """Return the step that answers, its answer here, and its answer without a fault. None: draw. Raises Refusal."""
        if (rest := self._unfinished.rest(request.token_ids)) is not None:
            return rest.step, rest.said, rest.said
        prompt = Prompt(request.token_ids, self.tokenizer, self._header)
        step = None if request.probe else self._player.next_step(prompt)
        if step is None:
            return None, None, ()
        if isinstance(step.fail, int):
            raise Refusal(step.fail, "the script says so", "InternalServerError")
        return step, self._speller.ids(step, prompt), self._speller.all_ids(step, prompt)

    def _scores(self, ids: list[int]) -> list[dict[str, Any] | None]:
        """Return the logprob of each id but the first, given the ids before it."""
        told: list[dict[str, Any] | None] = [None]
        for position in range(1, len(ids)):
            order = self._distribution.after(ids[max(position - CONTEXT_IDS, 0) : position], self.control.weights)
            logprob, rank = self._distribution.logprob(order, ids[position])
            told.append({str(ids[position]): {"logprob": logprob, "rank": rank, "decoded_token": self._pieces.text([ids[position]])}})
        return told


def _name(request: GenerateBody) -> str:
    return request.request_id or secrets.token_hex(8)
