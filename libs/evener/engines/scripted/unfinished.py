"""Answers of a script that were ended early. A request with the tokens so far continues them. Pure."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from evener.engines.scripted.script import Step

KEPT_ANSWERS: Final = 10_000


class Rest(Struct, frozen=True):
    """The rest of an answer, and how it is sent."""

    step: Step
    said: tuple[int, ...]


class Unfinished:
    """The unfinished answers by the ids of prompt and answer. A request with exactly these ids gets the rest, however often it is sent."""

    def __init__(self) -> None:
        self._rests: Final[dict[tuple[int, ...], Rest]] = {}

    def note(self, prompt: Sequence[int], sampled: Sequence[int], step: Step, said: Sequence[int]) -> None:
        """Keep the rest of `said`, which is all that the step says. Faults and gates of the script belong to the answer's beginning."""
        if sampled:
            wait = step.wait if step.wait == "each" else ()
            going_on = replace(step, fail=None, after=None, wait=wait, delay_ms=0)
            self._rests[(*prompt, *sampled)] = Rest(going_on, tuple(said[len(sampled) :]))
            if len(self._rests) > KEPT_ANSWERS:
                del self._rests[next(iter(self._rests))]

    def rest(self, prompt: Sequence[int]) -> Rest | None:
        """Return the rest that a prompt asks for. None: it asks for a new answer."""
        return self._rests.get(tuple(prompt)) if self._rests else None
