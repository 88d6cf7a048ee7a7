"""The registry of graders, by name."""

from typing import Final

from evener.graders import answer, fixed, harbor, none, test_log
from evener.graders.port import Grader, GraderRefused

GRADERS: Final[dict[str, Grader]] = {
    "answer": answer.grade,
    "fixed": fixed.grade,
    "harbor": harbor.grade,
    "none": none.grade,
    "test_log": test_log.grade,
}


def grader_for(name: str) -> Grader:
    """Return the grader of this name. Raises GraderRefused."""
    if name not in GRADERS:
        msg = f"unknown grader {name!r}, not one of {', '.join(sorted(GRADERS))}"
        raise GraderRefused(msg)
    return GRADERS[name]
