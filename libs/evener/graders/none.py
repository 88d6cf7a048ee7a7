"""No grading: for recordings and offline data whose worth is judged elsewhere."""

from evener.graders.port import Context, Grade


class NoGrader:
    """The grader `none`."""

    async def grade(self, context: Context) -> Grade:  # noqa: ARG002 - the port's signature
        return Grade(reward=None, ungraded="no grader")
