"""What relay and gateway say to each other about one call: HTTP, POST to the gateway, answered by a stream of frames.

The request is the harness's own (path, query, body) with the headers below. The answer is status 200 and a stream of frames,
each a 4-byte big-endian length and a msgpack map; the last frame is `Answer`. A stream that ends without one is a broken
gateway: the relay sends the request again under the same id. Without frames there are three answers. 307 with `OWNER` names the
gateway that owns the session. 410 says that the session has ended: its harness is to end. Every other status is the gateway's own
trouble (401: it cannot open the capability, 404: it does not know the session, 503: not now), which is never the harness's: the
relay sends the request again, while its limits allow.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from evener.proto.reasons import CallFailure

CAPABILITY: Final = "x-evener-capability"
"""The session's capability: session, attempt, start id, the offset of SessionStarted, expiry; signed."""
REQUEST_ID: Final = "x-evener-request-id"
STARTED: Final = "x-evener-started"
"""Set by the relay once the headers of a streamed answer are out: from then on an error is an event of the stream."""
REPEATS: Final = "x-evener-repeats"
"""Set by the relay on a marked retry: the id of the request that it repeats, which failed before it."""
STEP: Final = "x-evener-step"
"""Set by the relay for a task with steps: the number of the step that runs, from 1."""
OWNER: Final = "x-evener-owner"
"""The header of a 307 answer that holds the base URL of the owner."""
MOVING: Final = "x-evener-moving"
"""Set in a 503 answer: the partition is on its way to another gateway, which will serve the request. This gateway has not begun it."""
DISCONNECT_PATH: Final = "/calls/{request_id}/disconnect"
"""POST with the capability: the harness disconnected. Aborts the open call, or records that its answer was not delivered."""
RETRY_HEADER: Final = re.compile(r"retry|attempt")
SUB_AGENT_HEADER: Final = re.compile(r"sub-?agent|agent-(id|name)$")
MAX_MARK_CHARACTERS: Final = 100
MAX_MARKS: Final = 4
SERVE_PREFIX: Final = "/serve"
"""POST /serve/v1/chat/completions ...: a harness's request as the relay passes it on."""


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="frame"):
    """Base of the frames."""


class Admitted(Frame, frozen=True, kw_only=True, tag="admitted"):
    """The call is admitted and placed: headers may leave."""

    prompt_tokens: int


class Waiting(Frame, frozen=True, kw_only=True, tag="waiting"):
    """Seconds that the call waited without the agent's clock, since the last such frame."""

    seconds: float


class Delta(Frame, frozen=True, kw_only=True, tag="delta"):
    """Bytes of the answer's body that may leave before the commit (`live`)."""

    body: bytes


class Answer(Frame, frozen=True, kw_only=True, tag="answer"):
    """The end: committed. The bytes of the answer's body that were not sent as deltas, after the dialect's prologue."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes
    recorded: bool = False
    """It was answered from the record."""
    failure: CallFailure | None = None
    """Why there is no answer. None: there is one, or the session has ended."""
    detail: str = ""
    """With `failure`: the message for the harness. In a 503 without a body, which is for the relay alone: the gateway's fault."""


def is_marked(headers: Mapping[str, str], name: str | None) -> bool:
    """Return whether a harness's client set a header to a count above 0. `name` None: it has no such header."""
    return name is not None and headers.get(name, "0").strip() not in {"", "0"}


def marks_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the headers whose names and values look as if a client marked a retry or a sub-agent by them: a few, in order."""
    found = (name for name in headers if len(name) <= MAX_MARK_CHARACTERS and (RETRY_HEADER.search(name) or SUB_AGENT_HEADER.search(name)))
    return tuple(sorted(name for name in found if is_marked(headers, name)))[:MAX_MARKS]


AnyFrame = Admitted | Waiting | Delta | Answer
