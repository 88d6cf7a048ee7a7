"""Requests that were answered with a failure, so that a retry of one is not taken for a retry of an equal request that was answered."""

import hashlib
from collections import deque
from typing import Final

from evener.proto.relay import is_marked
from evener.sandbox_runner.gateway_client import RelayedCall
from evener.sandbox_runner.request_body import BODY_THREADS, PARSED_AT_ONCE_BYTES

KEPT_REQUESTS: Final = 256


class FailedRequests:
    """The failed requests of one relay. Each is kept as a digest by which a retry of it is recognised; its body is not kept."""

    def __init__(self, retry_header: str | None) -> None:
        """`retry_header`: by which the harness's client marks a transport retry. None: it marks none."""
        self._retry_header: Final = retry_header
        self._requests: Final[deque[tuple[bytes, str]]] = deque(maxlen=KEPT_REQUESTS)

    async def digest(self, call: RelayedCall) -> bytes | None:
        """Return what recognises a request, taken before its answer leaves: its retry may follow at once. None: retries are not marked."""
        if self._retry_header is None:
            return None
        return _digest(call) if len(call.body) <= PARSED_AT_ONCE_BYTES else await BODY_THREADS.run(_digest, call)

    def note(self, call: RelayedCall, digest: bytes | None) -> None:
        """Take note that a request failed: its client may send it again, marked."""
        if digest is not None:
            self._requests.append((digest, call.request_id))

    def original(self, call: RelayedCall, digest: bytes | None) -> str | None:
        """Return the id of the failed request that a marked one repeats; each is repeated once. None: it repeats none of them."""
        if digest is None or not is_marked(call.headers, self._retry_header):
            return None
        found = next((each for each in self._requests if each[0] == digest), None)
        if found is None:
            return None
        self._requests.remove(found)
        return found[1]


def _digest(call: RelayedCall) -> bytes:
    hashed = hashlib.blake2b(call.path.encode() + b"\n", digest_size=16)
    hashed.update(call.body)
    return hashed.digest()
