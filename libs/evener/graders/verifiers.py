"""Grades an answer by the rewards of a task of the package `verifiers`, in this process.

Options: `taskset`, the name of its module, which the evaluator's `grader_modules` lists; `index`, the task's number; `key`, by which it is
seen that the taskset still has the same task there. No answer is an empty one.
"""

import asyncio
from itertools import islice
from typing import Any, Final

from evener.graders.port import REWARD, Grade, GraderError, GraderRefused, GradingContext, graded
from evener.tasks.tasksets import TasksetMissing, needs_runtime, rewards_of, taskset_named

VERIFIERS_GRADER: Final = "verifiers"


async def grade(context: GradingContext) -> Grade:
    """Grade as `verifiers`."""
    options = context.trajectory.spec.grader.options
    name, index = options.get("taskset", ""), options.get("index", "")
    if name not in context.allowed.modules:
        msg = f"the evaluator's configuration does not allow the module {name!r} (`grader_modules`)"
        raise GraderRefused(msg)
    task = await asyncio.to_thread(_task, name, index, options.get("key"))
    try:
        reward, rewards = await rewards_of(task, context.trajectory.answer or "")
    except Exception as cause:  # the rewards are the taskset's own code
        msg = f"taskset {name!r}: {type(cause).__name__}: {cause}"
        raise GraderError(msg) from cause
    return graded({**rewards, REWARD: reward})


def _task(name: str, index: str, key: str | None) -> Any:
    try:
        taskset = taskset_named(name)
    except TasksetMissing as cause:
        msg = f"taskset {name!r}: {cause}"
        raise GraderRefused(msg) from cause
    number = int(index) if index.isdecimal() else -1
    task = next(islice(taskset, number, number + 1), None) if number >= 0 else None
    if task is None or (key is not None and task.key != key):
        msg = f"taskset {name!r} has no task {index} any more that is the one which was imported"
        raise GraderRefused(msg)
    if (needed := needs_runtime(task)) is not None:
        msg = f"taskset {name!r}: its reward {needed!r} needs verifiers' own runtime"
        raise GraderRefused(msg)
    return task
