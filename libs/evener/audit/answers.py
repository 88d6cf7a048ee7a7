"""I1: compares the answers that harnesses say they received with those that the log says they were sent."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.audit.findings import Findings, Invariant
from evener.audit.snapshot import EventRecord
from evener.bus.port import Position
from evener.proto.arrays import inline
from evener.proto.errors import ConfigError
from evener.proto.sessions import CallClosed, CallDelivered, FinishReason

CHAT_ID_PREFIX: Final = "chatcmpl-"
"""What the dialect of OpenAI Chat puts before an answer's id."""
ANSWERED: Final = "answered"


class ReceivedAnswer(Struct, frozen=True, kw_only=True):
    """An answer in a harness's own ledger."""

    answer_id: str
    message: dict[str, Any]
    """The message of OpenAI Chat that was received."""


class _Line(Struct, frozen=True, kw_only=True):
    kind: str
    answer_id: str = ""
    message: dict[str, Any] | None = None


_lines: Final = msgspec.json.Decoder(_Line)


def read_answers(path: Path) -> Iterator[ReceivedAnswer]:
    """Yield the answers in a ledger: lines of JSON whose kind is `answered`. Raises ConfigError for another file, OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                noted = _lines.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as cause:
                msg = f"line {number} of {path} is not an entry of a harness's ledger: {cause}"
                raise ConfigError(msg) from cause
            if noted.kind == ANSWERED:
                yield ReceivedAnswer(answer_id=noted.answer_id, message=noted.message or {})


class Received:
    """All answers that harnesses received, by id, as digests."""

    def __init__(self, answers: Iterable[ReceivedAnswer], findings: Findings) -> None:
        self._findings = findings
        self._digests: dict[str, list[str]] = {}
        self._committed: dict[str, list[tuple[str, Position]]] = {}
        for answer in answers:
            self._digests.setdefault(answer.answer_id.removeprefix(CHAT_ID_PREFIX), []).append(answer_digest(answer.message))

    def __bool__(self) -> bool:
        """Whether the ledgers have any answers."""
        return bool(self._digests)

    def session(self, session_id: str, records: Sequence[EventRecord]) -> None:
        """Note the answers that a session's records say its harness was sent."""
        closed = [(read.event, read.at) for read in records if isinstance(read.event, CallClosed) and is_whole(read.event)]
        for request_id, times in Counter(event.request_id for event, _ in closed).items():
            if times > 1:
                shown = [at for event, at in closed if event.request_id == request_id]
                self._findings.breach(Invariant.ANSWERS, session_id, f"request {request_id} was answered {times} times", *shown)
        if not self._digests:
            return
        calls = {event.call_id: event for event, _ in closed}
        for event, at in closed:
            self._note(event.answer_id, event, at)
        for read in records:  # a transport retry gets the answer under its own id
            if isinstance(read.event, CallDelivered) and (call := calls.get(read.event.call_id)) is not None:
                self._note(read.event.request_id, call, read.at)

    def end(self) -> None:
        """Check every answer, once all sessions were noted."""
        for answer_id, digests in self._digests.items():
            self._findings.count(Invariant.ANSWERS, len(digests))
            committed = self._committed.get(answer_id, [])
            if not {digest for digest, _ in committed}.issuperset(digests):
                said = "another answer was committed" if committed else "no committed call says so"
                self._findings.breach(
                    Invariant.ANSWERS, answer_id, f"the harness was answered, and {said}", *(position for _, position in committed)
                )
            if len(digests) > 1:
                self._findings.breach(Invariant.ANSWERS, answer_id, f"the answer was received {len(digests)} times")

    def _note(self, answer_id: str, call: CallClosed, at: Position) -> None:
        if answer_id in self._digests:
            digest = answer_digest(msgspec.json.decode(inline(call.choices[0].message)))
            self._committed.setdefault(answer_id, []).append((digest, at))


def is_whole(call: CallClosed) -> bool:
    """Return whether a call's answers were sampled to their end."""
    return all(choice.finish_reason is not FinishReason.ABORTED for choice in call.choices)


def answer_digest(message: dict[str, Any]) -> str:
    """Return the digest of an answer's canonical form: its text and tool calls, from the log or as a message of OpenAI Chat."""
    calls = [(call["id"], *_function(call)) for call in message.get("tool_calls") or ()]
    return hashlib.sha256(json.dumps([message.get("content") or "", calls], sort_keys=True).encode()).hexdigest()


def _function(call: dict[str, Any]) -> tuple[str, Any]:
    function = call.get("function", call)
    arguments = function["arguments"]
    try:
        return function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return function["name"], arguments
