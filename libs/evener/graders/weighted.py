"""The weighted mean of several graders. If one of them gives no reward, neither does this one.

The numbers of the parts are kept by name, their evidence below `NAME/`. Rewards of calls are weighed likewise; a part that has none for a
call counts as 0 there.
"""

from collections import defaultdict
from collections.abc import Callable

from msgspec import structs

from evener.graders.port import Grade, Grader, GraderError, GraderRefused, GradingContext, graded
from evener.proto.spec import GraderPart, GraderSpec


def weighted(grader_for: Callable[[str], Grader]) -> Grader:
    """Return the grader `weighted`, which finds the graders of its parts by name."""

    async def grade(context: GradingContext) -> Grade:
        parts = context.trajectory.spec.grader.parts
        if not parts:
            msg = "grader `weighted` has no parts"
            raise GraderRefused(msg)
        total = sum(part.weight for part in parts)
        rewards: dict[str, float] = {}
        reward, calls = 0.0, defaultdict[str, float](float)
        for number, part in enumerate(parts):
            got = await _graded(context, part, number, grader_for)
            rewards[part.name] = got.reward or 0.0
            reward += rewards[part.name] * part.weight / total
            for call_id, value in got.call_rewards.items():
                calls[call_id] += value * part.weight / total
        return graded({**rewards, "reward": reward}, calls)

    return grade


async def _graded(context: GradingContext, part: GraderPart, number: int, grader_for: Callable[[str], Grader]) -> Grade:
    """Grade one part. Raises GraderError naming it, also if it gives no reward."""
    trajectory = context.trajectory
    spec = structs.replace(trajectory.spec, grader=GraderSpec(name=part.grader, options=part.options))
    own = structs.replace(
        context, trajectory=structs.replace(trajectory, spec=spec), name=f"{context.name}-{number}", evidence=dict[str, bytes]()
    )
    try:
        grade = await grader_for(part.grader)(own)
    except GraderError as error:
        msg = f"part {part.name!r}: {error.what}"
        raise type(error)(msg) from error
    finally:
        context.evidence.update({f"{part.name}/{name}": content for name, content in own.evidence.items()})
    if grade.reward is None:
        msg = f"part {part.name!r} gave no reward: {grade.ungraded}"
        raise GraderRefused(msg)
    return grade
