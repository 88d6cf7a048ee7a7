"""What happens to the fields of a request: a table for each dialect, `RULES` in its `*_request` module. Pure.

A field is obeyed; or refused by name, because without it the answer would mean something else; or recorded among the requested parameters.
Fields in no table are recorded too. Null asks for nothing, and so do false and empty values of fields that would be refused. For a field of
which one value is served, an empty text asks for nothing. docs/reference/dialects.md is generated from these tables.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import Struct

from evener.dialects.fields import as_count, as_integer, as_number, refuse

STOPS: Final = "stop strings are not supported: an answer ends where the policy ends it; leave them out"
NEW_TURN: Final = "a history that ends with an answer is followed by a new turn, which does not continue it"
CACHE_MARKS: Final = frozenset({"cache_control"})
"""Fields that ask nothing of a model."""
LOGPROBS: Final = "log-probabilities are kept in the log, not sent to the harness"
CONSTRAINED: Final = "constrained sampling is not served; ask for the format in the prompt"


class Only(Struct, frozen=True):
    """The only value that a field may have, besides null and an empty text, which ask for nothing."""

    value: Any
    why: str


class Rules(Struct, frozen=True, kw_only=True, eq=False):
    """The rules for the fields of one object."""

    at: str = ""
    """The name of the object, unless it is the body itself: `generationConfig`."""
    obeyed: Mapping[str, str]
    """Fields that are served, and how. The parser reads them."""
    limits: tuple[str, ...] = ()
    """Fields that limit an answer's tokens. The first one given holds, lowered to what is left, and is recorded."""
    bounds: Mapping[str, tuple[float, float]] = {}
    """Sampling parameters with their bounds. They are recorded, and a wrong value is refused; the run's parameters hold."""
    integers: frozenset[str] = frozenset()
    """The sampling parameters among these that are integers."""
    recorded: Mapping[str, str] = {}
    """Known fields that are recorded, and what happens to them, in words."""
    hosted: frozenset[str] = frozenset()
    """Fields that ask for tools that the provider would run itself. They are removed, and recorded in `removed_tools`."""
    refused: Mapping[str, str] = {}
    """Fields that are refused, and why."""
    only: Mapping[str, Only] = {}
    """Fields that are refused with any other value than this one."""
    stops: str | None = None
    """The field of stop strings. It is refused unless the request only counts tokens."""

    def requested_params(self, fields: Mapping[str, Any], *, count_only: bool = False) -> dict[str, Any]:
        """Return what to record of fields that are not null. Raises RequestError naming the field."""
        requested_params: dict[str, Any] = {}
        for name, value in fields.items():
            if name in self.refused or name in self.only or name == self.stops:
                self._refuse(name, value, count_only=count_only)
            elif name not in self.obeyed and name not in self.hosted:
                self._check(name, value)
                requested_params[name] = value
        return requested_params

    def limit(self, fields: Mapping[str, Any]) -> int | None:
        """Return the requested limit of the answer's tokens. Raises RequestError naming the field."""
        given = [as_count(fields[name], self.path(name)) for name in self.limits if name in fields]
        return given[0] if given else None

    def removed(self, fields: Mapping[str, Any]) -> list[str]:
        """Return the fields that ask for hosted tools. An empty object asks for one, an empty list does not."""
        return sorted(name for name in self.hosted if fields.get(name, []) != [])

    def path(self, name: str) -> str:
        """Return the full path of a field in the body."""
        return f"{self.at}.{name}" if self.at else name

    def _refuse(self, name: str, value: Any, *, count_only: bool) -> None:
        if value and name in self.refused:
            refuse(self.path(name), self.refused[name])
        if name in self.only and value not in ("", self.only[name].value):
            refuse(self.path(name), self.only[name].why)
        if value and name == self.stops and not count_only:
            refuse(self.path(name), STOPS)

    def _check(self, name: str, value: Any) -> None:
        if name in self.bounds:
            least, most = self.bounds[name]
            as_number(value, self.path(name), least=least, most=most)
        if name in self.integers:
            as_integer(value, self.path(name))


def beside(sent: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the unknown fields of an object inside a request, which are dropped and therefore recorded."""
    return {name: value for name, value in sent.items() if value and name not in known and name not in CACHE_MARKS}


def chooses_none(value: Any) -> bool:
    """Return whether OpenAI's `tool_choice` hides all tools. A forced or narrowed choice is refused: it is constrained sampling."""
    if value not in ("auto", "none"):
        refuse("tool_choice", "only 'auto' and 'none' are served: a forced call is constrained sampling")
    return bool(value == "none")
