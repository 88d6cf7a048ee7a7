"""The canonical form of requests and answers, which everything behind the dialects uses. Pure: no I/O, no clock.

A canonical message is a JSON object with:

- `role`: `system`, `developer`, `user`, `assistant` or `tool`;
- `content`: a string, or a list of parts (`{"type": "text", "text"}`, `{"type": "image", "digest", "media_type"}`). A list of text parts
  only is joined into a string with newlines; absent or null content is "";
- for assistants: `reasoning` (a string, only if there is any); `tool_calls` (only if there are any), a list of
  `{"id", "name", "arguments"}` whose arguments are a parsed JSON object, or a string if they are not valid JSON; `key`, if a field that
  clients return verbatim brought back the key of an answer (`AnswerChoice.key`). It names the answer and is removed before comparing;
- for tools: `tool_call_id`, and `name` if given.

A canonical tool is `{"name", "description", "parameters"}` (JSON Schema); the last two are present only if given. Cache markers, and
everything else that a model cannot see, are removed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from evener.proto.blobs import Sha256
from evener.proto.errors import EvenerError
from evener.proto.reasons import CallFailure
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message


class Overflow(Struct, frozen=True, kw_only=True):
    """The sizes, in tokens, of a prompt and of the context that it does not fit."""

    asked: int
    limit: int


MAX_TOLD: Final = 1000
"""The longest message, in characters. It may quote what was sent, which is megabytes in the worst case."""
TOLD_END: Final = 300


class RequestError(EvenerError):
    """Correct the request: the message names the field."""

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        overflow: Overflow | None = None,
        reason: CallFailure = CallFailure.REFUSED,
    ) -> None:
        """`kind` is the error type in neutral terms; each dialect spells it in its own form.

        Kinds: `invalid_request_error`, `context_length_exceeded`, `authentication_error`, `not_found_error`, `rate_limit_error`,
        `overloaded_error`, `api_error`. `overflow` belongs to `context_length_exceeded`, if the numbers are known. `reason` decides who is
        responsible (`evener.proto.reasons`): by default Evener, which does not serve the request.
        """
        message = _shortened(message)
        super().__init__(message)
        self.message = message
        self.field = None if field is None else _shortened(field)
        self.status = status
        self.kind = kind
        self.overflow = overflow
        self.reason = reason

    def __str__(self) -> str:
        """Return the message alone: a harness shows it to its user."""
        return self.message


def _shortened(text: str) -> str:
    """Return a text without its middle if it is long: it begins with the field and ends with what to do."""
    left_out = len(text) - MAX_TOLD
    return text if left_out <= 0 else f"{text[: MAX_TOLD - TOLD_END]} [{left_out} characters left out] {text[-TOLD_END:]}"


class Image(Struct, frozen=True, kw_only=True):
    """The bytes of an image that a message names by its digest."""

    digest: Sha256
    media_type: str
    data: bytes
    path: str
    """The path of the image: in a request `messages[3].content[0].image_url.url`, in an item the same without the item's own path."""


class ToolForm(Struct, frozen=True, kw_only=True):
    """How the wire spells a tool that the policy sees as a function."""

    name: str
    """The tool's name on the wire."""
    namespace: str | None = None
    freeform: bool = False
    """Whether the tool is called with one text instead of JSON. Its canonical function has one string parameter, `input`."""
    search: bool = False
    """Whether this is the harness's own tool search, which has items of its own (Responses)."""


class CanonicalRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A harness's request for answers."""

    dialect: str
    model: str
    messages: tuple[Message, ...]
    digests: tuple[bytes, ...] | None = None
    """The digest of each message (`evener.dialects.items`), if the parser has them."""
    tools: tuple[Message, ...]
    forms: Mapping[str, ToolForm] = {}
    """The forms of tools that are not plain functions, by canonical name."""
    stream: bool
    count_only: bool = False
    """Whether the request only asks for the number of prompt tokens, so that nothing is sampled."""
    include_usage: bool = False
    """Chat: whether the stream ends with a usage chunk."""
    reasoning_withheld: bool = False
    """Anthropic: without `thinking`, the content of an answer begins with its text."""
    n: int = 1
    max_tokens: int | None = None
    """The harness's limit of an answer, which `requested_params` also holds under its own name."""
    requested_params: Mapping[str, Any]
    """The other parameters of the request, as sent (`evener.dialects.rules`). They are recorded; only limits are obeyed."""
    images: tuple[Image, ...] = ()
    """The images, each once, in order of appearance, with its first path."""


class AnswerChoice(Struct, frozen=True, kw_only=True, eq=False):
    """One answer for the wire."""

    message: Message
    finish_reason: FinishReason
    key: str
    """A key of letters and digits, unique to the sampled answer. Dialects put it where clients return it verbatim."""


class CanonicalAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """What a dialect renders. Every id and time comes from the record, so that rendering again gives the same bytes."""

    answer_id: str
    """The answer's id, letters and digits. Each dialect puts its own prefix before it."""
    created: int
    model: str
    choices: Sequence[AnswerChoice]
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    reasoning_tokens: int = 0
    """The number of completion tokens that are reasoning."""


class RequestHints(Struct, frozen=True, kw_only=True):
    """All that the relay reads of a request."""

    stream: bool = False
    model: str = ""


class Head(Struct, frozen=True, kw_only=True):
    """The fields of a stream's events that are known before anything is sampled. Relay and gateway derive the same values."""

    answer_id: str
    created: int
    model: str
    prompt_tokens: int


class Streamed(Struct, frozen=True, kw_only=True):
    """The part of the first choice that was sent before its end (`live`): prefixes of its reasoning and of its text."""

    reasoning: str = ""
    text: str = ""


NOTHING_STREAMED: Final = Streamed()


class Dialect(Protocol):
    """A provider's wire format, one pure module each; `openai_chat` is an example. A streamed answer is `prologue`, `delta`s, `events`."""

    name: str
    history: str
    """The field of a request that holds its messages."""
    endpoint: str
    """The path to which its clients POST, for people."""
    key_header: str
    """The header, in lower case, in which its clients send their key."""

    def serves(self, path: str) -> bool:
        """Return whether this path asks for answers in this dialect. The path may lack its version prefix and may have a query."""
        ...

    def hints(self, path: str, body: bytes) -> RequestHints:
        """Return the fields that the relay must know. Never raises: the gateway refuses what cannot be read."""
        ...

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        """Return the request. Raises RequestError naming the field."""
        ...

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        """Return the body of an answer that is not streamed."""
        ...

    def counted(self, prompt_tokens: int) -> bytes:
        """Return the body of the answer to a request that only counts tokens."""
        ...

    def prologue(self, head: Head) -> bytes:
        """Return the bytes that open a stream."""
        ...

    def keep_alive(self, head: Head) -> bytes:
        """Return a harmless protocol event, which may come anywhere between the prologue and the end."""
        ...

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:
        """Return the events that add to the first choice after `streamed` has left. Reasoning ends where text begins."""
        ...

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING_STREAMED) -> bytes:
        """Return everything after what was `streamed`, including the end of the stream."""
        ...

    def error(self, error: RequestError) -> bytes:
        """Return the body of an error, for use before any header has left."""
        ...

    def stream_error(self, head: Head, error: RequestError) -> bytes:
        """Return the event that ends a stream with an error."""
        ...


def head_of(answer: CanonicalAnswer) -> Head:
    """Return the head of an answer's stream."""
    return Head(answer_id=answer.answer_id, created=answer.created, model=answer.model, prompt_tokens=answer.prompt_tokens)


def rest_of(message: Message, streamed: Streamed) -> Streamed:
    """Return the reasoning and the text of an answer that were not streamed yet."""
    return Streamed(reasoning=str(message.get("reasoning") or "")[len(streamed.reasoning) :], text=text_of(message)[len(streamed.text) :])


def text_of(message: Message) -> str:
    """Return the text of a message's content without images."""
    content = message.get("content", "")
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["type"] == "text")


def parts_of(message: Message) -> list[Message]:
    """Return the parts of a message's content."""
    content = message.get("content", "")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
