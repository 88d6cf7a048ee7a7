"""A reward given by hand: the option `reward`, or the reward with which a recording was ended."""

from evener.graders.port import Grade, GraderRefused, GradingContext, graded


class FixedGrader:
    """The grader `fixed`."""

    async def grade(self, context: GradingContext) -> Grade:
        exited = context.trajectory.exit
        given: str | float | None = exited.reward if exited is not None and exited.reward is not None else None
        if given is None:
            given = context.trajectory.spec.grader.options.get("reward")
        if given is None:
            return Grade(reward=None, ungraded="no reward was given")
        try:
            return graded({"reward": float(given)})
        except ValueError as cause:
            msg = f"grader `fixed`: {given!r} is not a number"
            raise GraderRefused(msg) from cause
