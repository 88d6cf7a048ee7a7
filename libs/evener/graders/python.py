"""Grades by a Python function: of a module that the operator allows, or of a file that the task brings.

Options: `function` = `MODULE:NAME`, called in this process if the evaluator's `grader_modules` lists the module; or `file`, the name of a
file in the task's `tests/` that defines `grade`. That one runs in a fresh sandbox with the agent's changes, in the working directory, by
the sandbox's own `python3`. Either takes the session (`evener.graders.session.facts`) and returns a number, or a dictionary with `reward`,
`rewards`, `call_rewards`. A function may be asynchronous.
"""

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import structs

from evener.graders.port import Grade, GraderError, GraderRefused, GradingContext
from evener.graders.session import facts, grade_of
from evener.graders.task_tests import ending, last_lines, tested
from evener.sandboxes.grading import Grading
from evener.sandboxes.port import TESTS
from evener.tasks.directory import Task

FOLDER: Final = ".evener"
DEFAULT_FUNCTION: Final = "grade"
_RUN: Final = b'#!/bin/sh\nexec python3 "$(dirname "$0")/call.py"\n'
_CALL: Final = b"""\
import importlib.util, json, pathlib
here = pathlib.Path(__file__).resolve().parent
told = json.loads((here / "call.json").read_text())
spec = importlib.util.spec_from_file_location("grader", here.parent / told["file"])
grader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(grader)
reward = json.dumps(grader.grade(told["session"]))
logs = here.parents[1] / "logs" / "verifier"
(logs / "reward.json").write_text(reward)
"""


async def grade(context: GradingContext) -> Grade:
    """Grade as `python`."""
    options = context.trajectory.spec.grader.options
    match options:
        case {"function": str(function)} if "file" not in options:
            return await _by_function(context, function)
        case {"file": str(file)} if "function" not in options:
            return await _by_file(context, file)
        case _:
            msg = "grader `python` takes either `function` or `file`"
            raise GraderRefused(msg)


async def _by_function(context: GradingContext, name: str) -> Grade:
    function = await asyncio.to_thread(_function, name, tuple(context.allowed.modules))
    session = facts(context.trajectory)
    if inspect.iscoroutinefunction(function):
        answer = await function(session)
    else:
        answer = await asyncio.to_thread(function, session)
    try:
        data = msgspec.json.encode(answer)
    except (TypeError, ValueError) as cause:
        msg = f"{name} returned a {type(answer).__name__}: {cause}"
        raise GraderError(msg) from cause
    return grade_of(context.trajectory, data)


def _function(name: str, modules: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a function of an allowed module. Raises GraderRefused."""
    module, _, attribute = name.partition(":")
    if module not in modules:
        msg = f"the evaluator's configuration does not allow the module {module!r} (`grader_modules`)"
        raise GraderRefused(msg)
    try:
        function = getattr(importlib.import_module(module), attribute or DEFAULT_FUNCTION)
    except (ImportError, AttributeError) as cause:
        msg = f"grader function {name!r}: {cause}"
        raise GraderRefused(msg) from cause
    if not callable(function):
        msg = f"grader function {name!r} cannot be called"
        raise GraderRefused(msg)
    return function  # type: ignore[no-any-return]


async def _by_file(context: GradingContext, file: str) -> Grade:
    call = msgspec.json.encode({"file": file, "session": facts(context.trajectory)})
    brought = {f"{TESTS}/{FOLDER}/{name}": content for name, content in {"run.sh": _RUN, "call.py": _CALL, "call.json": call}.items()}

    def change(work: Grading) -> Grading:
        return structs.replace(work, script=f"{FOLDER}/run.sh", brought=brought)

    left, _ = await tested(context, lambda task: check_file(task, file), change)
    if left.reward_json is None:
        msg = f"tests/{file} {ending(left)} and returned nothing; {last_lines(left.output)}"
        raise GraderError(msg)
    return grade_of(context.trajectory, left.reward_json)


def check_file(task: Task, file: str) -> None:
    """Raise GraderRefused if the task's tests have no such file."""
    tests = (task.path / "tests").resolve()
    if not ((path := (tests / file).resolve()).is_relative_to(tests) and path.is_file()):
        msg = f"task {task.name} has no tests/{file}"
        raise GraderRefused(msg)
