"""What graders need, and what an evaluator offers: compared when a task is submitted, not when it is graded."""

import importlib
import inspect
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from evener.graders.log_parsers import parser_names
from evener.graders.port import Allowed, GraderRefused
from evener.graders.python import DEFAULT_FUNCTION, check_file
from evener.graders.task_files import read_task_file
from evener.graders.test_log import read_expected
from evener.proto.errors import ConfigError
from evener.proto.fleet import GraderOffer
from evener.proto.names import unknown
from evener.proto.spec import GraderPart, GraderSpec
from evener.tasks.directory import Task
from evener.tasks.grader_table import WHOLE, options_problem


class GraderNeed(Struct, frozen=True):
    """One thing that a grader needs of the evaluator."""

    kind: str
    """A field of GraderOffer."""
    name: str


WHAT = {"endpoints": "endpoint", "modules": "grader module", "functions": "grader function", "parsers": "log parser"}
"""Each field of GraderOffer, in words."""


def offer_of(allowed: Allowed) -> GraderOffer:
    """Return what graders find in a process. Raises ConfigError for a module that cannot be imported. Blocks."""
    functions = tuple(name for module in allowed.modules for name in _functions(module))
    endpoints, modules = tuple(allowed.endpoints), tuple(allowed.modules)
    return GraderOffer(endpoints=endpoints, modules=modules, functions=functions, parsers=parser_names())


def spec_problem(spec: GraderSpec) -> str | None:
    """Return what is wrong with a grader by itself, in words. None: nothing. Blocks."""
    if (spec.name == "weighted") != bool(spec.parts):
        return "parts are for the grader 'weighted', which needs some"
    if nested := [part.grader for part in spec.parts if part.grader in WHOLE]:
        return f"a part cannot be {nested[0]!r} itself"
    return next((problem for part in _parts(spec) if (problem := options_problem(part.grader, part.options)) is not None), None)


def needs_of(spec: GraderSpec, task: Task | None) -> tuple[GraderNeed, ...]:
    """Return what a grader needs of the evaluator. Raises GraderRefused if it names files that the task does not have. Blocks."""
    return tuple(need for part in _parts(spec) for need in _needs(part, task))


def lacking(needs: Sequence[GraderNeed], offer: GraderOffer) -> str | None:
    """Return what an offer lacks, in words. None: nothing."""
    for need in needs:
        offered: tuple[str, ...] = getattr(offer, need.kind)
        if need.name not in offered:
            return unknown(WHAT[need.kind], need.name, offered or ["none"], "of the evaluator")
    return None


def _parts(spec: GraderSpec) -> Iterable[GraderPart]:
    return spec.parts or (GraderPart(name=spec.name, grader=spec.name, options=spec.options),)


def _needs(part: GraderPart, task: Task | None) -> Iterator[GraderNeed]:
    options = part.options
    if "endpoint" in options:
        yield GraderNeed("endpoints", options["endpoint"])
    if "taskset" in options:
        yield GraderNeed("modules", options["taskset"])
    if "function" in options:
        module, _, function = options["function"].partition(":")
        yield GraderNeed("functions", f"{module}:{function or DEFAULT_FUNCTION}")
    if task is None:
        return
    if part.grader == "test_log":
        yield GraderNeed("parsers", read_expected(task, options["expected"]).parser)
    elif "file" in options:
        check_file(task, options["file"])
    elif "body" in options:
        read_task_file(task.path, options["body"])
    elif part.grader == "harbor" and not task.steps and not task.verification.has_script:
        msg = f"task {task.name} has no tests/test.sh, which the grader `harbor` runs"
        raise GraderRefused(msg)


def _functions(module: str) -> list[str]:
    try:
        members = inspect.getmembers(importlib.import_module(module), callable)
    except Exception as cause:  # whatever the operator's module does when it is imported
        msg = f"grader_modules: {module!r} cannot be imported: {type(cause).__name__}: {cause}"
        raise ConfigError(msg) from cause
    return [f"{module}:{name}" for name, _ in members if not name.startswith("_")]
