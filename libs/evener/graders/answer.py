"""Compares the agent's last message with an expected answer.

Options: `expected` (the answer), `match` = `exact` (default), `contains`, `regex` or `number`. Case and white space are folded, except in a
regular expression. A wrong answer is worth 0, and so is no answer.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final

from evener.graders.port import Grade, GraderRefused, GradingContext, graded
from evener.proto.patterns import BadPattern, SlowPattern, text_pattern

ANSWER_OPTIONS: Final = frozenset({"expected", "match"})
_NUMBER: Final = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


async def grade(context: GradingContext) -> Grade:
    """Grade as `answer`."""
    options = context.trajectory.spec.grader.options
    if unknown := sorted(set(options) - ANSWER_OPTIONS):
        msg = f"grader `answer` knows no option {unknown[0]!r}"
        raise GraderRefused(msg)
    right = await asyncio.to_thread(compare, context.trajectory.answer, options.get("expected"), options.get("match", "exact"))
    return graded({"reward": float(right)})


def compare(answer: str | None, expected: str | None, match: str) -> bool:
    """Return whether the answer is the expected one. Raises GraderRefused if the options do not allow a comparison."""
    if expected is None:
        msg = "grader `answer` has no option `expected`"
        raise GraderRefused(msg)
    if match not in MATCHES:
        msg = f"grader `answer`: match is {match!r}, not one of {', '.join(sorted(MATCHES))}"
        raise GraderRefused(msg)
    return answer is not None and MATCHES[match](answer, expected)


def folded(text: str) -> str:
    """Return the text case-folded, with single spaces and none around it."""
    return " ".join(text.casefold().split())


def _exact(answer: str, expected: str) -> bool:
    return folded(answer) == folded(expected)


def _contains(answer: str, expected: str) -> bool:
    return folded(expected) in folded(answer)


def _regex(answer: str, expected: str) -> bool:
    try:
        return text_pattern(expected, ignore_case=True).occurs_in(answer)
    except BadPattern as cause:
        msg = f"grader `answer`: `expected` is {cause.args[0]}"
        raise GraderRefused(msg) from cause
    except SlowPattern as cause:
        msg = f"grader `answer`: {cause.args[0]}"
        raise GraderRefused(msg) from cause


def _number(answer: str, expected: str) -> bool:
    """Return whether the last number in the answer is the expected one; people write their computation before the result."""
    wanted, said = _last_number(expected), _last_number(answer)
    if wanted is None:
        msg = f"grader `answer`: {expected!r} is not a number"
        raise GraderRefused(msg)
    return said == wanted


def _last_number(text: str) -> float | None:
    found: list[str] = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


MATCHES: Final[dict[str, Callable[[str, str], bool]]] = {"exact": _exact, "contains": _contains, "regex": _regex, "number": _number}
