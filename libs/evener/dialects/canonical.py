"""The one form of requests and answers that everything behind the dialects sees. Pure: no I/O, no clock.

A canonical message is a JSON object with, in this order of meaning:

- `role`: `system`, `developer`, `user`, `assistant` or `tool`;
- `content`: a string, or a list of parts (`{"type": "text", "text"}`, `{"type": "image", "digest", "media_type"}`); a list of
  text parts only is joined into a string, with a newline between parts; absent or null is "";
- assistants: `reasoning` (string, only if there is any), `tool_calls` (only if there are any): a list of
  `{"id", "name", "arguments"}`, arguments a parsed JSON object, or a string where it is not valid JSON; `key` where a field
  that clients return verbatim brought ours back (`AnswerChoice.key`): it says which answer this was, and is cut before comparing;
- tools: `tool_call_id`; `name` where given.

A canonical tool is `{"name", "description", "parameters"}` (JSON Schema), the latter two only where given.
Cache markers and everything a model cannot see are gone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from evener.proto.blobs import Sha256
from evener.proto.ends import CallFailure
from evener.proto.errors import EvenerError
from evener.proto.sessions import FinishReason

Message = dict[str, Any]


class Overflow(Struct, frozen=True, kw_only=True):
    """A prompt that does not fit the context: the tokens of both."""

    asked: int
    limit: int


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
        """`kind` is the dialect-neutral error type; each dialect spells it in its own shape.

        Used: `invalid_request_error`, `context_length_exceeded`, `authentication_error`, `not_found_error`, `rate_limit_error`,
        `overloaded_error`, `api_error`. `overflow`: of a `context_length_exceeded`, where the numbers are known. `reason` decides whose
        fault it is (`evener.proto.ends.WHOSE`): where nothing else is said, ours, who do not serve it.
        """
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status
        self.kind = kind
        self.overflow = overflow
        self.reason = reason

    def __str__(self) -> str:
        """Only the message: a harness shows it to its user."""
        return self.message


class Image(Struct, frozen=True, kw_only=True):
    """The bytes of an image that a message names by its digest."""

    digest: Sha256
    media_type: str
    data: bytes
    place: str
    """Where it stands: in a request, `messages[3].content[0].image_url.url`; in an item of one, without the item's own place."""


class ToolForm(Struct, frozen=True, kw_only=True):
    """How a tool that the policy sees as a function is spelled on the wire."""

    name: str
    """Its wire name."""
    namespace: str | None = None
    freeform: bool = False
    """Called with one text instead of JSON: the canonical function has one string parameter, `input`."""
    search: bool = False
    """The harness's own tool search: called and answered by items of its own (Responses)."""


class CanonicalRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A harness's request for answers."""

    dialect: str
    model: str
    messages: tuple[Message, ...]
    digests: tuple[bytes, ...] | None = None
    """Of each message (`evener.dialects.items`), where the parser had them at hand."""
    tools: tuple[Message, ...]
    forms: Mapping[str, ToolForm] = {}
    """By canonical tool name: those that are no plain functions."""
    stream: bool
    count_only: bool = False
    """Only the number of prompt tokens is asked for: nothing is sampled."""
    include_usage: bool = False
    """Chat: the stream ends with a usage chunk."""
    reasoning_withheld: bool = False
    """Anthropic: without `thinking` the content of an answer begins with its text."""
    n: int = 1
    max_tokens: int | None = None
    """The harness's wish, which stands in `wishes` by its own name too."""
    wishes: Mapping[str, Any]
    """What was asked for beside the answer, as sent (`evener.dialects.rules`): recorded, and but for limits not followed."""
    images: tuple[Image, ...] = ()
    """Each once, in order of appearance, at its first place."""


class AnswerChoice(Struct, frozen=True, kw_only=True, eq=False):
    """One answer for the wire."""

    message: Message
    finish_reason: FinishReason
    key: str
    """Letters and digits, one for each sampled answer: dialects put it where clients return it verbatim."""


class CanonicalAnswer(Struct, frozen=True, kw_only=True, eq=False):
    """What a dialect renders. Every id and time is from the record, so that rendering again gives the same bytes."""

    answer_id: str
    """Letters and digits; each dialect puts its own prefix before it."""
    created: int
    model: str
    choices: Sequence[AnswerChoice]
    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    reasoning_tokens: int = 0
    """Of the completion tokens."""


class Wish(Struct, frozen=True, kw_only=True):
    """All that the relay reads of a request."""

    stream: bool = False
    model: str = ""


class Head(Struct, frozen=True, kw_only=True):
    """What the events of a stream say before anything is sampled; relay and gateway make the same."""

    answer_id: str
    created: int
    model: str
    prompt_tokens: int


class Streamed(Struct, frozen=True, kw_only=True):
    """What has left of the first choice before its end (`live`): beginnings of its reasoning and of its text."""

    reasoning: str = ""
    text: str = ""


NOTHING: Final = Streamed()


class Dialect(Protocol):
    """A provider's wire format: one pure module each, see `openai_chat`. A streamed answer is `prologue`, `delta`s, `events`."""

    name: str
    history: str
    """The field of a request that holds its messages."""

    def serves(self, path: str) -> bool:
        """Return whether this path (with or without its version prefix, any query) asks for answers in this dialect."""
        ...

    def wish(self, path: str, body: bytes) -> Wish:
        """Return what the relay must know. What cannot be read the gateway will refuse: never raises."""
        ...

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        """Return the request. Raises RequestError naming the field."""
        ...

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        """Return the whole body of an answer that is not streamed."""
        ...

    def counted(self, prompt_tokens: int) -> bytes:
        """Return the body of the answer to a request that only counts."""
        ...

    def prologue(self, head: Head) -> bytes:
        """Return what opens a stream."""
        ...

    def keep_alive(self, head: Head) -> bytes:
        """Return a harmless protocol event; it may come anywhere between prologue and the end."""
        ...

    def delta(self, head: Head, key: str, streamed: Streamed, *, reasoning: str = "", text: str = "") -> bytes:
        """Return the events that add to the first choice, after `streamed` has left. Reasoning ends where text begins."""
        ...

    def events(self, request: CanonicalRequest, answer: CanonicalAnswer, streamed: Streamed = NOTHING) -> bytes:
        """Return everything after what was `streamed`, the end of the stream included."""
        ...

    def error(self, error: RequestError) -> bytes:
        """Return the body of an error before any header left."""
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
    """Return the text of a message's content, images left out."""
    content = message.get("content", "")
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["type"] == "text")


def parts_of(message: Message) -> list[Message]:
    """Return the parts of a message's content."""
    content = message.get("content", "")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
