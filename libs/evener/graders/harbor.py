"""Harbor's contract: runs the task's `tests/test.sh` in a fresh sandbox with the agent's changes, then reads the reward that it wrote.

`reward.json` (an object of finite numbers) is read first, then `reward.txt` (one finite number). A reward that is empty, missing or
unreadable is no reward, never 0. The exit code of the tests is kept as evidence and ignored.

The steps of a task are graded one after the other, each with what the agent had left after it, until one misses its least reward.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from evener.graders.port import REWARD, Grade, GraderError, GraderRefused, GradingContext, graded
from evener.graders.task_tests import as_it_is, ending, last_lines, run_tests, task_of
from evener.sandboxes.grading import GradingOutcome
from evener.sandboxes.port import VERIFIER_LOGS
from evener.tasks.directory import STEP_FILES, Task
from evener.tasks.tables import RewardStrategy

_numbers: Final = msgspec.json.Decoder(dict[str, float])


async def grade(context: GradingContext) -> Grade:
    """Grade as `harbor`."""
    async with task_of(context) as task:
        if task.steps:
            return await _of_steps(context, task)
        if not task.verification.has_script:
            msg = f"task {task.name} has no tests/test.sh"
            raise GraderRefused(msg)
        return grade_of(await run_tests(context, task, as_it_is))


async def _of_steps(context: GradingContext, task: Task) -> Grade:
    """Grade the steps that the agent came to, until one of them misses its least reward."""
    grades: dict[str, dict[str, float]] = {}
    for step in _reached(context, task):
        grades[step.name] = grade_of(await run_tests(context, step, as_it_is, STEP_FILES.format(step.name))).rewards
        if any(grades[step.name].get(name, -math.inf) < least for name, least in step.min_reward.items()):
            break
    by_step = {f"{step}.{name}": value for step, rewards in grades.items() for name, value in rewards.items()}
    whole = rewards_of_steps(tuple(grades.values()), task.strategy)
    return graded({**by_step, **whole, REWARD: graded(whole).reward or 0.0})


def rewards_of_steps(steps: Sequence[Mapping[str, float]], strategy: RewardStrategy) -> dict[str, float]:
    """Return what the rewards of the graded steps come to: the last one's, or the mean of each, where a missing one counts as 0."""
    if strategy is RewardStrategy.FINAL:
        return dict(steps[-1])
    names = dict.fromkeys(name for rewards in steps for name in rewards)
    return {name: sum(rewards.get(name, 0.0) for rewards in steps) / len(steps) for name in names}


def _reached(context: GradingContext, task: Task) -> tuple[Task, ...]:
    """Return the steps of which the session left something. None left anything: the first, whose grading says why."""
    left = context.trajectory.exit
    names = [artifact.name for artifact in (() if left is None else left.artifacts)]
    reached = tuple(step for step in task.steps if any(name.startswith(STEP_FILES.format(step.name)) for name in names))
    return reached or task.steps[:1]


def grade_of(left: GradingOutcome) -> Grade:
    """Return the grade that the tests wrote. Raises GraderError, with the end of their output, if they wrote none."""
    try:
        return graded(_rewards(left))
    except GraderError as cause:
        msg = f"{cause.what}; {last_lines(left.output)}"
        raise GraderError(msg) from cause


def _rewards(left: GradingOutcome) -> dict[str, float]:
    if left.unread is not None:
        raise GraderError(left.unread)
    if left.reward_json is not None:
        return _read_json(left.reward_json)
    if left.reward_text is not None:
        return {"reward": _read_text(left.reward_text)}
    msg = f"tests/test.sh {ending(left)} and wrote neither {VERIFIER_LOGS}/reward.json nor reward.txt"
    raise GraderError(msg)


def _read_json(data: bytes) -> dict[str, float]:
    try:
        return _numbers.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as cause:
        msg = f"reward.json is not an object of numbers: {cause}"
        raise GraderError(msg) from cause


def _read_text(data: bytes) -> float:
    try:
        return float(data.decode())
    except ValueError as cause:
        msg = f"reward.txt is not a number: {data[:40]!r}"
        raise GraderError(msg) from cause
