"""What an audit checks, and what it finds."""

from collections import Counter
from enum import StrEnum
from typing import Final

from msgspec import Struct

from evener.bus.port import Position


class Invariant(StrEnum):
    """The promises, by number."""

    ANSWERS = "I1"
    TOKENS = "I2"
    DELIVERED = "I3"
    TASKS = "I4"
    REBUILT = "I5"
    GROUPS = "I6"
    OURS = "I7"
    SEALED = "I8"
    ACCOUNTS = "I9"
    READABLE = "I10"
    ENGINE = "I11"


PROMISES: Final[dict[Invariant, str]] = {
    Invariant.ANSWERS: "Every answer that a harness received was committed as it was received, and each request was answered once.",
    Invariant.TOKENS: "Every trained token has an id, a logprob and a policy version.",
    Invariant.DELIVERED: "Each session is delivered once, with the rows that were built, or its group's record says why not.",
    Invariant.TASKS: "Every task ends once, and every session and group belongs to a task.",
    Invariant.REBUILT: "A rebuild from the log, or from the stored records, gives the same bytes.",
    Invariant.GROUPS: "Every group names all its sessions.",
    Invariant.OURS: "No trained session sampled nothing, was refused a call, or ended by a fault of ours.",
    Invariant.SEALED: "Each session is sealed once, for a cause, nothing of its owner follows, and each call is opened and ended once.",
    Invariant.ACCOUNTS: "The accounting of a group is the sum of its members'.",
    Invariant.READABLE: "Every record could be read; none is a dead letter that nobody replayed.",
    Invariant.ENGINE: "Every row is what the engine was fed and sampled, and a sampled token is trained at most once.",
}
"""Each promise in a sentence."""
COUNTED: Final[dict[Invariant, str]] = {
    Invariant.ANSWERS: "answers",
    Invariant.TOKENS: "rows",
    Invariant.DELIVERED: "sessions",
    Invariant.TASKS: "tasks",
    Invariant.REBUILT: "rebuilds",
    Invariant.GROUPS: "groups",
    Invariant.OURS: "trained sessions",
    Invariant.SEALED: "sessions",
    Invariant.ACCOUNTS: "groups",
    Invariant.READABLE: "records",
    Invariant.ENGINE: "trajectories",
}
"""What the number of checks counts."""


class Breach(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A promise that was not kept."""

    invariant: Invariant
    about: str
    """The id of the session, task, group, call or answer."""
    what: str
    records: tuple[str, ...] = ()
    """The records that show it: TOPIC/PARTITION@OFFSET."""

    def __str__(self) -> str:
        """Return the breach as a line."""
        shown = f" ({', '.join(self.records)})" if self.records else ""
        return f"{self.invariant}: {self.about}: {self.what}{shown}"


class AuditReport(Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    tasks: int
    sessions: int
    groups: int
    calls: int
    open_tasks: int
    """Tasks that have not ended. They are no breach, unless the audit was told that everything has ended."""
    open_sessions: int
    deleted_tasks: int
    """Tasks whose run was deleted. They were not checked."""
    trimmed_sessions: int
    """Sessions of which the log no longer holds the beginning: they were checked against their stored records."""
    checked: dict[Invariant, int]
    """The number of checks by invariant. An invariant that nothing was checked for is absent."""
    breaches: tuple[Breach, ...]


class Findings:
    """Collects what an audit checks and finds."""

    def __init__(self) -> None:
        self.checked = Counter[Invariant]()
        self.breaches: list[Breach] = []

    def count(self, invariant: Invariant, times: int = 1) -> None:
        """Note that so many things were checked."""
        self.checked[invariant] += times

    def breach(self, invariant: Invariant, about: str, what: str, *at: Position | None) -> None:
        """Note a breach, with the records that show it."""
        records = tuple(place(position) for position in at if position is not None)
        self.breaches.append(Breach(invariant=invariant, about=about, what=what, records=records))


def place(position: Position) -> str:
    """Return a position as people write it."""
    return f"{position.topic}/{position.partition}@{position.offset}"
