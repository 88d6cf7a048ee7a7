"""The evaluator's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradings: how many at once, how long, how often again."""

    concurrency: Annotated[int, Meta(ge=1)] = 4
    """Gradings at a time."""
    backlog: Annotated[int, Meta(ge=1)] = 64
    """Trajectories of one partition that may be open: graded, or waiting for it."""
    grading_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    """A grading that takes longer has crashed. A task's own limit comes first."""
    retry_seconds: Annotated[float, Meta(ge=0)] = 1.0
    """Pause before the second try; it doubles up to a minute."""
    blob_seconds: Annotated[float, Meta(ge=0)] = 600.0
    """A grading whose blobs cannot be read is tried again for so long, whatever `grader.tries` says; then the session is ungraded."""
    commit_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """Offsets are committed at most so often."""
