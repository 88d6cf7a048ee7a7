"""Harbor's contract: runs the task's `tests/test.sh` in a fresh sandbox with the agent's changes, then reads the reward that it wrote.

`reward.json` (an object of finite numbers) is read first, then `reward.txt` (one finite number). A reward that is empty, missing or
unreadable is no reward, never 0. The exit code of the tests is kept as evidence and ignored.
"""

from typing import Final

import msgspec

from evener.graders.port import Grade, GraderError, GraderRefused, GradingContext, graded
from evener.graders.task_tests import as_it_is, ending, last_lines, tested
from evener.sandboxes.grading import GradingOutcome
from evener.sandboxes.port import VERIFIER_LOGS
from evener.tasks.directory import Task

_numbers: Final = msgspec.json.Decoder(dict[str, float])


async def grade(context: GradingContext) -> Grade:
    """Grade as `harbor`."""
    left, _ = await tested(context, _check, as_it_is)
    return grade_of(left)


def _check(task: Task) -> None:
    if task.tests is None:
        msg = f"task {task.name} has no tests/test.sh"
        raise GraderRefused(msg)


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
