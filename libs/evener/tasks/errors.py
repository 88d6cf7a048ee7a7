"""The error of task directories."""

from evener.proto.errors import EvenerError


class TaskError(EvenerError):
    """Correct the task directory. It needs instruction.md, task.toml, and either tests/test.sh or a grader in `[metadata.evener]`."""
