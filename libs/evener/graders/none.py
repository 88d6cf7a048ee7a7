"""The grader `none`, for recordings and offline data that are graded elsewhere."""

from evener.graders.port import Grade, GradingContext


class NoGrader:
    """The grader `none`."""

    async def grade(self, context: GradingContext) -> Grade:  # noqa: ARG002 - the port's signature
        return Grade(reward=None, ungraded="no grader")
