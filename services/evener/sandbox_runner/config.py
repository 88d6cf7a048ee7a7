"""The sandbox-runner's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig

Seconds = Annotated[float, Meta(gt=0)]


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sandboxes, harnesses, and the relay."""

    capacity: Annotated[int, Meta(ge=1)] = 4
    """Sessions that run at a time."""
    trust_local: bool = False
    """Let harnesses that have tools run as plain processes: what the model writes then runs on this machine with your rights."""
    harness_cache: str = "~/.cache/evener/harnesses"
    """Folder of the installed harnesses."""
    admission_seconds: Seconds = 30.0
    """A call that no gateway admits within this time is answered 503; one harness gives up after 60 s without headers."""
    call_seconds: Seconds = 3600.0
    """Longest life of one call, sending it again included."""
    keep_alive_seconds: Seconds = 15.0
    """Between the harmless events that keep a harness waiting for a streamed answer."""
    body_bytes: Annotated[int, Meta(ge=1024)] = 32 * 1024 * 1024
    """Largest request body that is taken from a harness."""
    changes_bytes: Annotated[int, Meta(ge=0)] = 256 * 1024 * 1024
    """New and changed files of a session, all together. One that leaves more keeps none of them and is not graded."""
    changes_entries: Annotated[int, Meta(ge=1)] = 50_000
    """Files, folders and links that a session's sandbox may hold at its end. One that leaves more keeps none and is not graded."""
    changes_seconds: Seconds = 120.0
    """For reading what a session changed. One that takes longer keeps nothing and is not graded."""
    log_bytes: Annotated[int, Meta(ge=1024)] = 1024 * 1024
    """Of a harness's output so much is kept: the beginning and the end."""
    recording_seconds: Seconds = 30.0
    """A recording without a heartbeat for so long has ended."""
    session_seconds: Seconds = 86_400.0
    """Life of a session's capability: calls after it are refused."""
