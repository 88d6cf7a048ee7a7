"""The client without asyncio, for trainers that have no event loop: it runs in a thread of its own.

    with connect(url, token) as evener:
        for group in (groups := evener.groups(start=position)):
            ...
            evener.publish("policy", version, folder)

`wait` runs any other method of `Client`: `evener.wait(evener.client.submit(options))`.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from evener.client.client import Client
from evener.client.groups import Group, Groups, PartitionOffsets, log_failed
from evener.client.views import PublishAnswer
from evener.proto.fleet import Canary
from evener.proto.trajectories import GroupFailed

T = TypeVar("T")


@contextmanager
def connect(url: str, token: str, *, ca_file: str | None = None) -> Iterator["SyncClient"]:
    """Yield a client of the Evener at `url`. See `Client` for what is given."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="evener-client", daemon=True)
    thread.start()
    evener = SyncClient(_make(url, token, ca_file, loop), loop)
    try:
        yield evener
    finally:
        asyncio.run_coroutine_threadsafe(_end(evener), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class SyncClient:
    """The methods of `Client` that a trainer needs, as blocking calls, and `wait` for all others. They raise the client's errors."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client: Final = client
        self._loop: Final = loop
        self.streams: Final[list[AsyncGenerator[Group, None]]] = []
        """The open streams of groups, which are closed at the end even if the caller forgets them."""

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `client`; return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def groups(
        self,
        *,
        start: Mapping[str, int] | None = None,
        run_id: str | None = None,
        policy: str | None = None,
        follow: bool | None = None,
        on_failed: Callable[[GroupFailed], object] = log_failed,
    ) -> "SyncGroups":
        """Return the groups from a position on; see `evener.client.groups.Groups`. `on_failed` is called in the client's thread."""
        groups = Groups(self.client, start=start, run_id=run_id, policy=policy, follow=follow, on_failed=on_failed)
        return SyncGroups(self, groups)

    def publish(self, policy: str, version: int, path: str, *, digest: str | None = None, canary: Canary | None = None) -> PublishAnswer:
        """Load a folder of weights into the policy's engines as this version; return when the engines sample from it."""
        return self.wait(self.client.publish(policy, version, path, digest=digest, canary=canary))


class SyncGroups:
    """An iterator over groups. `position` is after the last group taken."""

    def __init__(self, client: SyncClient, groups: Groups) -> None:
        self._client = client
        self._groups = groups
        self._stream = aiter(groups)
        client.streams.append(self._stream)

    @property
    def position(self) -> PartitionOffsets:
        """The position to save in the checkpoint."""
        return dict(self._groups.position)

    @property
    def failed(self) -> int:
        """The number of failed groups that were passed."""
        return self._groups.failed

    @property
    def dropped(self) -> int:
        """How many groups a rule of their run dropped, of those that were passed."""
        return self._groups.dropped

    def __iter__(self) -> "SyncGroups":
        return self

    def __next__(self) -> Group:
        group = self._client.wait(anext(self._stream, None))
        if group is None:
            raise StopIteration
        return group

    def close(self) -> None:
        """Close the stream."""
        self._client.wait(self._stream.aclose())


def _make(url: str, token: str, ca_file: str | None, loop: asyncio.AbstractEventLoop) -> Client:
    async def made() -> Client:  # its connections belong to that loop
        return Client(url, token, ca_file=ca_file)

    return asyncio.run_coroutine_threadsafe(made(), loop).result()


async def _end(evener: SyncClient) -> None:
    for stream in evener.streams:
        with suppress(RuntimeError):  # it still runs: who waited for a group was interrupted, and it ends by that
            await stream.aclose()
    await evener.client.aclose()
    await asyncio.get_running_loop().shutdown_asyncgens()
