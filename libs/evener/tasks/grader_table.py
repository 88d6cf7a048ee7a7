"""Reads `[metadata.evener]` of task.toml: how a task is graded without `tests/test.sh`, or besides it."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, structs

from evener.proto.names import unknown
from evener.proto.patterns import BadPattern, text_pattern
from evener.proto.spec import Consequence, Detector, GraderPart, GraderSpec
from evener.tasks.errors import TaskError
from evener.tasks.tables import Cleaning

MATCH_NAMES: Final = ("exact", "contains", "regex", "number")
"""How the `answer` grader compares the last message with the expected answer."""
SEEN_NAMES: Final = ("answer", "messages", "changes")
"""What a judge may see of a session."""
GRADER_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "answer": frozenset({"expected", "match"}),
    "fixed": frozenset({"reward"}),
    "harbor": frozenset(),
    "http": frozenset({"endpoint", "body"}),
    "judge": frozenset({"endpoint", "rubric", "reference", "sees"}),
    "none": frozenset(),
    "python": frozenset({"function", "file"}),
    "relative_judge": frozenset({"endpoint", "rubric", "reference", "sees"}),
    "test_log": frozenset({"expected"}),
    "verifiers": frozenset({"taskset", "index", "key"}),
    "weighted": frozenset(),
}
"""The options of each grader, by its name in `evener.graders.registry`."""
WHOLE: Final = frozenset({"relative_judge", "weighted"})
"""The graders that cannot be a part of another."""
REQUIRED_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "answer": ("expected",),
    "http": ("endpoint",),
    "judge": ("endpoint", "rubric"),
    "relative_judge": ("endpoint", "rubric"),
    "test_log": ("expected",),
    "verifiers": ("taskset", "index"),
}
"""The options that a grader cannot do without."""


class PartTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A grader of a task: its name and options."""

    grader: str = "answer"
    name: str | None = None
    """The name of a part's reward. Default: the grader's."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """The weight of a part."""
    expected: str | int | float | None = None
    match: str | None = None
    reward: float | None = None
    endpoint: str | None = None
    body: str | None = None
    rubric: str | None = None
    reference: str | None = None
    sees: str | None = None
    function: str | None = None
    file: str | None = None
    taskset: str | None = None
    index: str | int | None = None
    key: str | None = None

    def options(self) -> dict[str, str]:
        """Return the grader's options as text. Raises TaskError for one that it does not have, or lacks."""
        every = sorted(frozenset[str]().union(*GRADER_OPTIONS.values()))
        given = {name: str(value) for name in every if (value := getattr(self, name)) is not None}
        if self.grader == "answer":
            given.setdefault("match", "exact")
        if (problem := options_problem(self.grader, given)) is not None:
            msg = f"task.toml: [metadata.evener] {problem}"
            raise TaskError(msg)
        return given


class OwnTable(PartTable, frozen=True, forbid_unknown_fields=True):
    """`[metadata.evener]`: a grader, a sandbox backend, what follows from reward hacking, what an agent must not find."""

    sandbox: str | None = None
    hacking: Consequence | dict[Detector, Consequence] | None = None
    """What follows from what the detectors find: for all of them, or by detector (those that are not named flag). None: they all flag."""
    clean: Cleaning | None = None
    """What an agent must not find in its sandbox. None: nothing is said."""
    read_only_root: bool | None = None
    """Whether the root of the agent's container is read-only. None: as the backend's configuration says."""
    tests_drop_rights: bool = False
    """Whether the tests run as root that may become another user, to run the agent's programs without a way to the reward."""
    parts: list[PartTable] = []
    """The parts of the grader `weighted`."""


def own_grader(table: OwnTable | None) -> GraderSpec | None:
    """Return the grader of `[metadata.evener]`. None: it names none. Raises TaskError if it is not a valid one."""
    if table is None or (table != OwnTable() and _without_places(table) == OwnTable()):
        return None
    if (table.grader == "weighted") != bool(table.parts):
        msg = "task.toml: [[metadata.evener.parts]] are for the grader 'weighted', which needs some"
        raise TaskError(msg)
    parts = tuple(_part(part) for part in _distinct(table.parts))
    return GraderSpec(name=table.grader, options=table.options(), parts=parts, hacking=hacking_of(table))


def _without_places(table: OwnTable) -> OwnTable:
    """Return what a table says of grading alone."""
    return structs.replace(table, sandbox=None, hacking=None, clean=None, read_only_root=None, tests_drop_rights=False)


def hacking_of(table: OwnTable | None) -> dict[Detector, Consequence]:
    """Return what follows from reward hacking, by detector."""
    if table is None or table.hacking is None:
        return {}
    return dict(table.hacking) if isinstance(table.hacking, dict) else dict.fromkeys(Detector, table.hacking)


def _part(part: PartTable) -> GraderPart:
    if part.grader in WHOLE:
        msg = f"task.toml: [[metadata.evener.parts]] a part cannot be {part.grader!r} itself"
        raise TaskError(msg)
    return GraderPart(name=part.name or part.grader, grader=part.grader, weight=part.weight, options=part.options())


def _distinct(parts: list[PartTable]) -> list[PartTable]:
    names = [part.name or part.grader for part in parts]
    if again := [name for name in names if names.count(name) > 1]:
        msg = f"task.toml: [[metadata.evener.parts]] two parts are called {again[0]!r}: give each a name"
        raise TaskError(msg)
    return parts


def options_problem(grader: str, options: Mapping[str, str]) -> str | None:
    """Return what is wrong with a grader and its options, in words. None: nothing. Blocks: it compiles a pattern."""
    known = GRADER_OPTIONS.get(grader)
    if known is None:
        return unknown("grader", grader, GRADER_OPTIONS, "here")
    if wrong := sorted(set(options) - known):
        return unknown("option", wrong[0], sorted(known) or ["none"], f"of the grader {grader!r}")
    if missing := [name for name in REQUIRED_OPTIONS.get(grader, ()) if name not in options]:
        return f"the grader {grader!r} has no `{missing[0]}`"
    if grader == "python" and ("function" in options) == ("file" in options):
        return "the grader 'python' takes either `function` or `file`"
    if unseen := [one for one in seen_by_judge(options) if one not in SEEN_NAMES]:
        return f"sees has {unseen[0]!r}, not one of {', '.join(SEEN_NAMES)}"
    return _match_problem(options["match"], options["expected"]) if grader == "answer" and "match" in options else None


def seen_by_judge(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a judge sees of a session, by the option `sees`: the answer, unless it says more."""
    return tuple(one.strip() for one in options.get("sees", SEEN_NAMES[0]).split(","))


def _match_problem(match: str, expected: str) -> str | None:
    if match not in MATCH_NAMES:
        return f"match is {match!r}, not one of {', '.join(MATCH_NAMES)}"
    try:
        if match == "regex":
            text_pattern(expected)
        elif match == "number":
            float(expected)
    except BadPattern as cause:
        return f"expected is {cause.args[0]}"
    except ValueError as cause:
        return f"expected is not a {match}: {cause}"
    return None
