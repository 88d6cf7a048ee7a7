"""What becomes of the fields of a request: a table for each dialect, `RULES` in its `*_request` module. Pure.

A field is obeyed, or it is refused by name because the answer would mean something else without it, or it is recorded as a wish;
what stands in no table is recorded too. Null asks for nothing, and so do false and empty values of what would be refused; where one
value is served, an empty text does. The page docs/reference/dialects.md is made of these tables.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import Struct

from evener.dialects.fields import as_count, as_integer, as_number, refuse

STOPS: Final = "stop strings are not supported: an answer ends where the policy ends it; leave them out"
NEW_TURN: Final = "a history that ends with an answer is followed by a new turn, which does not continue it"
CACHE_MARKS: Final = frozenset({"cache_control"})
"""Fields that ask nothing of a model."""


class Only(Struct, frozen=True):
    """The one value that a field may have, but for null and an empty text, which ask for nothing."""

    value: Any
    why: str


class Rules(Struct, frozen=True, kw_only=True, eq=False):
    """What becomes of the fields of one object."""

    at: str = ""
    """The object, where it is not the body itself: `generationConfig`."""
    obeyed: Mapping[str, str]
    """What of it is served. Its parser reads it."""
    limits: tuple[str, ...] = ()
    """The tokens of an answer; the first that is given holds, lowered to what there is, and is recorded."""
    bounds: Mapping[str, tuple[float, float]] = {}
    """Sampling parameters: recorded, the run's hold, but a mistake is told."""
    integers: frozenset[str] = frozenset()
    """The same, of which each is a whole number."""
    recorded: Mapping[str, str] = {}
    """Known fields among those that are recorded, and what becomes of them: for people."""
    hosted: frozenset[str] = frozenset()
    """Ask for tools that the provider would run itself: removed, and recorded in `removed_tools`."""
    refused: Mapping[str, str] = {}
    """Why it is not served."""
    only: Mapping[str, Only] = {}
    """Refused with any other value than this one."""
    stops: str | None = None
    """The field with stop strings: refused, but where only the prompt is counted."""

    def wishes(self, fields: Mapping[str, Any], *, count_only: bool = False) -> dict[str, Any]:
        """Return what is to be recorded of fields that are not null. Raises RequestError naming the field."""
        wishes: dict[str, Any] = {}
        for name, value in fields.items():
            if name in self.refused or name in self.only or name == self.stops:
                self._refuse(name, value, count_only=count_only)
            elif name not in self.obeyed and name not in self.hosted:
                self._check(name, value)
                wishes[name] = value
        return wishes

    def limit(self, fields: Mapping[str, Any]) -> int | None:
        """Return how many tokens the answer may have, as asked for. Raises RequestError naming the field."""
        given = [as_count(fields[name], self.place(name)) for name in self.limits if name in fields]
        return given[0] if given else None

    def removed(self, fields: Mapping[str, Any]) -> list[str]:
        """Return the fields that ask for hosted tools. An empty object does, an empty list does not."""
        return sorted(name for name in self.hosted if fields.get(name, []) != [])

    def place(self, name: str) -> str:
        """Return where a field stands in the body."""
        return f"{self.at}.{name}" if self.at else name

    def _refuse(self, name: str, value: Any, *, count_only: bool) -> None:
        if value and name in self.refused:
            refuse(self.place(name), self.refused[name])
        if name in self.only and value not in ("", self.only[name].value):
            refuse(self.place(name), self.only[name].why)
        if value and name == self.stops and not count_only:
            refuse(self.place(name), STOPS)

    def _check(self, name: str, value: Any) -> None:
        if name in self.bounds:
            least, most = self.bounds[name]
            as_number(value, self.place(name), least=least, most=most)
        if name in self.integers:
            as_integer(value, self.place(name))


def beside(sent: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return what else an object inside a request asks for: dropped, and so recorded."""
    return {name: value for name, value in sent.items() if value and name not in known and name not in CACHE_MARKS}
