"""The grader `none`, for recordings and offline data that are graded elsewhere."""

from evener.graders.port import Grade, GradingContext


async def grade(context: GradingContext) -> Grade:  # noqa: ARG001 - the port's signature
    """Grade as `none`."""
    return Grade(reward=None, ungraded="no grader")
