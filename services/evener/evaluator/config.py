"""The evaluator's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.graders.config import Endpoint
from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradings: their concurrency, time limits and retries."""

    concurrency: Annotated[int, Meta(ge=1)] = 4
    """The number of gradings at a time."""
    backlog: Annotated[int, Meta(ge=1)] = 64
    """The number of trajectories of one partition that may be open: being graded, or waiting for it."""
    grading_seconds: Annotated[float, Meta(gt=0)] = 1800.0
    """A grading that takes longer counts as crashed. A task's own limit comes first."""
    retry_seconds: Annotated[float, Meta(ge=0)] = 1.0
    """The pause before the second try. It doubles with each try, up to a minute."""
    blob_seconds: Annotated[float, Meta(ge=0)] = 600.0
    """How long a grading whose blobs cannot be read is tried again, whatever `grader.tries` says. Then the session is ungraded."""
    endpoints: dict[str, Endpoint] = {}
    """The servers that graders may ask, by the name that tasks give: judges and verifiers."""
    grader_modules: tuple[str, ...] = ()
    """The Python modules whose functions may grade, inside this process."""
    commit_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """The least time between two commits of offsets."""
