"""The registry of graders, by name."""

from typing import Final

from evener.graders import answer, fixed, harbor, http, judge, none, python, relative, test_log, verifiers
from evener.graders.port import Grader, GraderRefused
from evener.graders.weighted import weighted


def grader_for(name: str) -> Grader:
    """Return the grader of this name. Raises GraderRefused."""
    if name not in GRADERS:
        msg = f"unknown grader {name!r}, not one of {', '.join(sorted(GRADERS))}"
        raise GraderRefused(msg)
    return GRADERS[name]


GRADERS: Final[dict[str, Grader]] = {
    "answer": answer.grade,
    "fixed": fixed.grade,
    "harbor": harbor.grade,
    "http": http.grade,
    "judge": judge.grade,
    "none": none.grade,
    "python": python.grade,
    relative.RELATIVE_JUDGE: relative.grade,
    "test_log": test_log.grade,
    verifiers.VERIFIERS_GRADER: verifiers.grade,
    "weighted": weighted(grader_for),
}
GROUP_GRADERS: Final = frozenset({relative.RELATIVE_JUDGE})
"""Those that grade the sessions of a group together."""
