"""The registry of graders, by name."""

from collections.abc import Callable
from typing import Final

from evener.graders.answer import AnswerGrader
from evener.graders.fixed import FixedGrader
from evener.graders.harbor import HarborGrader
from evener.graders.none import NoGrader
from evener.graders.port import Grader, GraderRefused

GRADERS: Final[dict[str, Callable[[], Grader]]] = {"answer": AnswerGrader, "fixed": FixedGrader, "harbor": HarborGrader, "none": NoGrader}


def grader_for(name: str) -> Grader:
    """Return the grader of this name. Raises GraderRefused."""
    if name not in GRADERS:
        msg = f"unknown grader {name!r}, not one of {', '.join(sorted(GRADERS))}"
        raise GraderRefused(msg)
    return GRADERS[name]()
