"""The error of this door."""

from evener.proto.errors import EvenerError


class TaskError(EvenerError):
    """Correct the task directory: it holds instruction.md, task.toml and either tests/test.sh or a grader in `[metadata.evener]`."""
