"""The sandbox-runner's configuration."""

from typing import Annotated

from msgspec import Meta

from evener.proto.spec import Seconds
from evener.sandboxes.config import BackendName
from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sandboxes, harnesses, and the relay."""

    capacity: Annotated[int, Meta(ge=1)] = 4
    """The number of sessions that run at a time."""
    warm_sandboxes: Annotated[int, Meta(ge=0)] = 4
    """The number of sandboxes that are prepared ahead, for sessions that the scheduler has queued. They take no place of a session. 0: none
    is, and each session prepares its own. `local` sandboxes are never prepared ahead."""
    preparing: Annotated[int, Meta(ge=1)] = 2
    """The number of them that are prepared at a time."""
    warm_seconds: Annotated[float, Meta(ge=0)] = 60.0
    """How long a prepared sandbox that no queued session needs is kept, unless its place is needed."""
    sandbox: BackendName | None = None
    """The sandbox backend of sessions whose run and task name none. None: commands choose one that gives the task what it needs."""
    trust_local: bool = False
    """Let harnesses that have tools run as plain processes. What the model writes then runs on this machine with your rights."""
    harness_cache: str = "~/.cache/evener/harnesses"
    """The folder of the installed harnesses."""
    admission_seconds: Seconds = 30.0
    """A call that no gateway admits within this time is answered 503. One harness gives up after 60 s without headers. The time in which a
    gateway hands the call's partition over does not count."""
    call_seconds: Seconds = 3600.0
    """The longest life of one call, including repeated requests."""
    keep_alive_seconds: Seconds = 15.0
    """The interval of the harmless events that keep a harness waiting for a streamed answer."""
    body_bytes: Annotated[int, Meta(ge=1024)] = 32 * 1024 * 1024
    """The largest request body that a harness may send."""
    bodies_bytes: Annotated[int, Meta(ge=1024)] = 256 * 1024 * 1024
    """The bodies of open requests that the runner holds together; each is there up to three times. Half of it belongs to the sessions, in
    equal parts. Of the other half, a session is lent at most as much as it leaves. Further requests wait, at most `admission_seconds`."""
    changes_bytes: Annotated[int, Meta(ge=0)] = 256 * 1024 * 1024
    """The limit of a session's new and changed files together. A session that leaves more keeps none of them and is not graded."""
    changes_entries: Annotated[int, Meta(ge=1)] = 50_000
    """The limit of files, folders and links in a session's sandbox at its end. A session that leaves more keeps none and is not graded."""
    changes_seconds: Seconds = 120.0
    """The time limit for reading a session's changes. A session that takes longer keeps nothing and is not graded."""
    log_bytes: Annotated[int, Meta(ge=1024)] = 1024 * 1024
    """How much of a harness's output is kept, half from the beginning and half from the end."""
    recording_seconds: Seconds = 30.0
    """A recording without a heartbeat for this time has ended."""
    session_seconds: Seconds = 86_400.0
    """The life of a session's capability. Later calls are refused."""
