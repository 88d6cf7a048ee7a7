"""Decides whether a message that a harness sends back is a sampled answer, and how much it may have changed on the way. Pure."""

import re
from typing import Any, Final

from evener.proto.sessions import MatchedBy
from evener.proto.spec import Reasoning, Tolerance
from evener.tokens.digests import KEY_FIELD, Message, canonical_json, said

_NOT_LETTERS: Final = re.compile(r"[^A-Za-z0-9]")
_LOOSE_DIGITS: Final = 15
TRIMMABLE: Final = frozenset({MatchedBy.TRIMMED, MatchedBy.KEY})
"""Ways to recognise an answer without tool calls. White space around its text may be missing."""


def same_answer(
    sampled: Message, key: str, sent: Message, tolerances: frozenset[Tolerance], reasoning: Reasoning
) -> tuple[MatchedBy, bool] | None:
    """Return how `sent` is recognised as the `sampled` answer with this key, and whether it was altered. None: it is not that answer.

    An answer is recognised by its tool-call ids first, then by the key in a field that comes back verbatim, then by its content, then by
    its trimmed text. In every case, a difference beyond the tolerances makes `sent` a message of the harness.
    """
    same_key = sent.get(KEY_FIELD) == key
    if canonical_json(sampled) == canonical_json(said(sent)):
        return _exact(sent, same_key=same_key), False
    by = _recognised_by(sampled, sent, tolerances, same_key=same_key)
    if by is None or not _same_calls(sampled, sent, tolerances):
        return None
    if not _same_text(str(sampled.get("content") or ""), str(sent.get("content") or ""), by, tolerances):
        return None
    if not _same_reasoning(sampled.get("reasoning"), sent.get("reasoning"), tolerances, reasoning):
        return None
    return by, True


def _exact(sent: Message, *, same_key: bool) -> MatchedBy:
    if sent.get("tool_calls"):
        return MatchedBy.CALL_ID
    return MatchedBy.KEY if same_key else MatchedBy.CONTENT


def _recognised_by(sampled: Message, sent: Message, tolerances: frozenset[Tolerance], *, same_key: bool) -> MatchedBy | None:
    ours, theirs = _call_ids(sampled, tolerances), _call_ids(sent, tolerances)
    if ours and ours == theirs:
        return MatchedBy.CALL_ID
    absent = Tolerance.CALL_IDS_ABSENT in tolerances and not any(theirs)
    if (ours or theirs) and not (absent and len(ours) == len(theirs)):
        return None
    if same_key:
        return MatchedBy.KEY
    return MatchedBy.CONTENT if sampled.get("content") == sent.get("content") else MatchedBy.TRIMMED


def _call_ids(message: Message, tolerances: frozenset[Tolerance]) -> list[str]:
    ids = [str(call.get("id") or "") for call in message.get("tool_calls") or ()]
    return [_NOT_LETTERS.sub("", one) for one in ids] if Tolerance.CALL_ID_LETTERS in tolerances else ids


def _same_calls(sampled: Message, sent: Message, tolerances: frozenset[Tolerance]) -> bool:
    loose = Tolerance.NUMBERS_LOOSE in tolerances
    ours, theirs = (
        [(call.get("name"), _loose(call.get("arguments"), loose)) for call in message.get("tool_calls") or ()]
        for message in (sampled, sent)
    )
    return canonical_json(ours) == canonical_json(theirs)  # bytes: Python says 1 == 1.0 == True


def _loose(value: Any, loose: bool) -> Any:  # noqa: FBT001 - the tolerance, passed down
    """Return the value with its numbers as a JavaScript client prints them."""
    if not loose:
        return value
    if isinstance(value, dict):
        return {key: _loose(inner, loose) for key, inner in value.items()}
    if isinstance(value, list):
        return [_loose(inner, loose) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{float(value):.{_LOOSE_DIGITS}g}"  # never an overflow: MAX_DIGITS bounds what was sampled and what was sent
    return value


def _same_text(sampled: str, sent: str, by: MatchedBy, tolerances: frozenset[Tolerance]) -> bool:
    if sampled == sent:
        return True
    if Tolerance.BLANK_TEXT_ABSENT in tolerances and not sampled.strip() and not sent:
        return True
    return (by in TRIMMABLE or Tolerance.TEXT_TRIMMED in tolerances) and sampled.strip() == sent.strip()


def _same_reasoning(sampled: Any, sent: Any, tolerances: frozenset[Tolerance], option: Reasoning) -> bool:
    ours, theirs = str(sampled or ""), str(sent or "")
    if ours == theirs:
        return True
    if not theirs:
        return Tolerance.REASONING_ABSENT in tolerances and option is not Reasoning.AS_SENT
    return Tolerance.TEXT_TRIMMED in tolerances and ours.strip() == theirs.strip()
