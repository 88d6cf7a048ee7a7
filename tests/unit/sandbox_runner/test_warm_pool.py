"""The pool of warm sandboxes, with real ones: how many of what there are, who gets them, and that none stays."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.support.waiting import eventually

from evener.proto.blobs import BlobRef
from evener.proto.fleet import QueuedSessions
from evener.proto.sandbox import SandboxKind
from evener.proto.spec import TaskRef
from evener.sandbox_runner.core import NoStart
from evener.sandbox_runner.warm_pool import PoolLimits, WarmPool
from evener.sandboxes.local import LocalSandboxes, open_local
from evener.sandboxes.port import Sandbox
from evener.service.telemetry import metrics

TASK = TaskRef(name="t", digest="0" * 64, archive=BlobRef(digest="0" * 64, size=1))


def kind(name: str) -> SandboxKind:
    return SandboxKind(backend="local", harness="script", needs=name)


def queued(**sessions: int) -> list[QueuedSessions]:
    return [QueuedSessions(kind=kind(name), task=TASK, sessions=count) for name, count in sessions.items()]


class Bench:
    """A pool over sandboxes in a folder, whose clock is set by hand."""

    def __init__(self, sandboxes: LocalSandboxes, root: Path, limits: PoolLimits) -> None:
        self.now = time.monotonic()
        self.registry = CollectorRegistry()
        self.pool = WarmPool(limits, metrics(self.registry), clock=lambda: self.now)
        self.made: list[str] = []
        self.at_a_time = 0
        self.may_be_made = asyncio.Event()
        self.may_be_made.set()
        self.broken: set[str] = set()
        self._sandboxes = sandboxes
        self._root = root
        self._making = 0

    async def make(self, wanted: QueuedSessions, stack: AsyncExitStack) -> Sandbox:
        name = wanted.kind.needs
        if name in self.broken:
            msg = "its image is gone"
            raise NoStart(msg)
        self._making += 1
        self.at_a_time = max(self.at_a_time, self._making)
        try:
            self.made.append(name)
            sandbox = await stack.enter_async_context(self._sandboxes.open(f"{name}-{len(self.made)}"))
            await self.may_be_made.wait()
            await sandbox.warm()
            return sandbox
        finally:
            self._making -= 1

    def folders(self) -> set[str]:
        """Return the sandboxes that there are."""
        return {folder.name for folder in self._root.iterdir() if not folder.name.startswith(".")}

    def ready(self) -> Counter[str]:
        return Counter({warm.kind.needs: warm.ready for warm in self.pool.ready()})

    async def until(self, **ready: int) -> None:
        await eventually(lambda: self.ready() == Counter(ready))

    def want(self, wanted: Sequence[QueuedSessions]) -> None:
        self.pool.want(wanted)


@asynccontextmanager
async def bench(folder: Path, *, sandboxes: int = 4, preparing: int = 2, rest_seconds: float = 60.0) -> AsyncIterator[Bench]:
    """Run a pool; afterwards nothing of it is left."""
    root = folder / "sandboxes"
    async with open_local(root) as opened:
        b = Bench(opened, root, PoolLimits(sandboxes=sandboxes, preparing=preparing, rest_seconds=rest_seconds))
        running = asyncio.ensure_future(b.pool.run(b.make))
        try:
            yield b
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert b.folders() == set()


async def test_kinds_that_are_queued_share_the_pool(tmp_path: Path) -> None:
    """One of each in turn, never more than there are sessions, and never more than the limit."""
    async with bench(tmp_path, sandboxes=4) as b:
        b.want(queued(often=100, once=1, twice=2))
        await b.until(often=2, once=1, twice=1)

        assert len(b.folders()) == 4


async def test_no_more_are_prepared_at_a_time_than_there_are_slots_for_it(tmp_path: Path) -> None:
    async with bench(tmp_path, sandboxes=4, preparing=2) as b:
        b.may_be_made.clear()
        b.want(queued(a=10))
        await eventually(lambda: len(b.made) == 2)
        b.may_be_made.set()
        await b.until(a=4)

        assert b.at_a_time == 2


async def test_session_that_takes_one_is_its_only_user(tmp_path: Path) -> None:
    """Another one is prepared in its place; the sandbox ends with the session."""
    async with bench(tmp_path, sandboxes=1) as b:
        b.want(queued(a=10))
        await b.until(a=1)
        async with AsyncExitStack() as session, AsyncExitStack() as other:
            taken = await b.pool.take(kind("a"), session)
            assert taken is not None
            assert await taken.usable()
            await b.until(a=1)
            second = await b.pool.take(kind("a"), other)
            assert second is not None
            assert second.inside("/app") != taken.inside("/app")
            await session.aclose()
            assert not await taken.usable()
            assert await second.usable()


async def test_session_of_another_kind_gets_none(tmp_path: Path) -> None:
    async with bench(tmp_path) as b, AsyncExitStack() as session:
        b.want(queued(a=1))
        await b.until(a=1)

        assert await b.pool.take(kind("b"), session) is None


async def test_sandbox_that_was_lost_while_it_waited_is_not_handed_out(tmp_path: Path) -> None:
    """The next one is; it is counted."""
    async with bench(tmp_path, sandboxes=2, preparing=1) as b, AsyncExitStack() as session:
        b.want(queued(a=2))
        await b.until(a=2)
        (tmp_path / "sandboxes" / "a-1").rename(tmp_path / "away")
        with capture_logs() as logs:
            taken = await b.pool.take(kind("a"), session)

        assert taken is not None
        assert await taken.usable()
        assert b.registry.get_sample_value("evener_warm_sandboxes_lost_total") == 1
        assert [entry["event"] for entry in logs] == ["warm_sandbox_lost"]


async def test_what_no_session_needs_any_more_goes_after_a_rest(tmp_path: Path) -> None:
    """The queue may be empty for a moment only."""
    async with bench(tmp_path, rest_seconds=60.0) as b:
        b.want(queued(a=2))
        await b.until(a=2)
        b.want(())
        b.now += 59.0
        b.want(())
        await eventually(lambda: b.registry.get_sample_value("evener_warm_sandboxes", {"state": "ready"}) == 2)
        b.want(queued(a=1))
        b.now += 2.0

        await b.until(a=1)
        assert b.made == ["a", "a"]


async def test_what_is_not_needed_makes_room_at_once(tmp_path: Path) -> None:
    """For kinds that are."""
    async with bench(tmp_path, sandboxes=2) as b:
        b.want(queued(old=2))
        await b.until(old=2)
        b.want(queued(new=1))
        await b.until(old=1, new=1)
        b.want(queued(new=5))
        await b.until(new=2)


async def test_kind_that_cannot_be_prepared_is_told_and_left_for_a_while(tmp_path: Path) -> None:
    """Other kinds have its place; then it is tried again."""
    with capture_logs() as logs:
        async with bench(tmp_path, sandboxes=2, preparing=1) as b:
            b.broken.add("bad")
            b.want(queued(bad=5, good=5))
            await b.until(good=2)
            told = [entry["reason"] for entry in logs if entry["event"] == "not_warmed"]
            assert told == ["its image is gone"]

            b.broken.clear()
            b.now += 31.0
            b.want(queued(bad=5, good=5))
            await b.until(bad=1, good=1)


async def test_stopped_pool_has_nothing_and_prepares_nothing(tmp_path: Path) -> None:
    """What is being prepared when it stops goes too; what a session has taken stays until its end."""
    async with bench(tmp_path, sandboxes=3, preparing=3) as b, AsyncExitStack() as session:
        b.want(queued(a=1))
        await b.until(a=1)
        taken = await b.pool.take(kind("a"), session)
        assert taken is not None
        b.may_be_made.clear()
        b.want(queued(b=2))
        await eventually(lambda: b.made.count("b") == 2)
        b.pool.stop()
        b.want(queued(c=3))
        b.may_be_made.set()

        await eventually(lambda: len(b.folders()) == 1)
        assert await taken.usable()
        assert "c" not in b.made


async def test_pool_of_none_prepares_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, sandboxes=0) as b, AsyncExitStack() as session:
        b.want(queued(a=1))
        await eventually(lambda: b.registry.get_sample_value("evener_warm_sandboxes", {"state": "preparing"}) == 0)

        assert await b.pool.take(kind("a"), session) is None
        assert b.made == []
