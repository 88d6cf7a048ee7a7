"""A reward given by hand: the option `reward`, or the reward with which a recording was ended."""

from evener.graders.port import Grade, GraderRefused, GradingContext, graded


async def grade(context: GradingContext) -> Grade:
    """Grade as `fixed`."""
    exited = context.trajectory.exit
    given: str | float | None = None if exited is None else exited.reward
    if given is None:
        given = context.trajectory.spec.grader.options.get("reward")
    if given is None:
        return Grade(reward=None, ungraded="no reward was given")
    try:
        return graded({"reward": float(given)})
    except ValueError as cause:
        msg = f"grader `fixed`: {given!r} is not a number"
        raise GraderRefused(msg) from cause
