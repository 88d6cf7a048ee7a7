"""How each id is made, and what it means.

A task id comes from the client, which makes a submission idempotent, or is drawn. Group and session ids are derived from it, so that a
scheduler that takes over uses the same names. Start ids, nonces and request ids are random: whoever knows one may use it. Call ids consist
of letters and digits, which every harness returns verbatim.
"""

import re
import secrets
import time
from typing import Final

TASK_ID_PATTERN: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


def new_id(prefix: str, *, now: float | None = None) -> str:
    """Return `prefix`, 12 hexadecimal digits of the milliseconds since 1970, and 14 random ones: a unique id that sorts by time."""
    millis = int((time.time() if now is None else now) * 1000)
    return f"{prefix}{millis:012x}{secrets.token_hex(7)}"


def id_seconds(made: str) -> float:
    """Return the time, in Unix seconds, at which `new_id` made this id. Raises ValueError for any other id."""
    return int(made[-26:-14], 16) / 1000


def group_of(task_id: str) -> str:
    """Return the id of the one group of a task."""
    return task_id


def session_of(group_id: str, index: int) -> str:
    """Return the id of sample `index` (from 0) of a group."""
    return f"{group_id}.{index}"


def new_request_id() -> str:
    """Return an id that the relay gives to one request of the harness. A re-sent request keeps it. The answer's time derives from it."""
    return new_id("r")


def answer_identity(request_id: str) -> tuple[str, int]:
    """Return the id (letters and digits) and the time (Unix seconds) of the answer to a request. Relay and gateway derive the same."""
    return request_id, int(id_seconds(request_id))


def new_call_id() -> str:
    """Return the id of a model call in the log."""
    return new_id("c")


def new_start_id() -> str:
    """Return the id of one start of a session by one runner."""
    return new_id("s")


def new_nonce() -> str:
    """Return the key that a harness holds: 256 bits, letters and digits, worthless outside its own relay."""
    return f"evk{secrets.token_hex(32)}"


def answer_key(call_id: str, choice: int) -> str:
    """Return the key of one sampled answer, for fields that clients return verbatim. It has letters and digits only."""
    return f"{call_id}x{choice}"


def tool_call_id(call_id: str, choice: int, index: int) -> str:
    """Return the id of a tool call in an answer. It has letters and digits only, so that every harness returns it verbatim."""
    return keyed_call_id(answer_key(call_id, choice), index)


def keyed_call_id(key: str, index: int) -> str:
    """Return the id of a tool call in the answer that has this key."""
    return f"call{key}x{index}"
