"""Outages of the blob store are waited out, or told after a limit."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.outage import Outage

from evener.blobs.failing import FailingObjects
from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError, Blobs, NotRead, NotRemoved, NotStored
from evener.blobs.store import ref_of
from evener.blobs.waited import BlobTimings, Waited
from evener.proto.blobs import BlobRef
from evener.runtime.backoff import Backoff
from evener.service.store import Store

TIMINGS = BlobTimings(away=Backoff(0.001, 0.005), missing=Backoff(0.0, 0.0))


@pytest.fixture
def store() -> Outage:
    return Outage(open_blobs("memory://"))


async def test_an_outage_is_waited_out(store: Outage) -> None:
    """Reading, writing and looking up go on where they stood."""
    waited = Waited(store, timings=TIMINGS)
    ref = await waited.put(b"there")
    store.away = True
    asked = [asyncio.ensure_future(one) for one in (waited.put(b"new"), waited.get(ref), waited.has(ref))]
    while store.refused < 30:
        store.met.clear()
        await store.met.wait()
    assert not any(task.done() for task in asked)
    store.away = False

    assert await asyncio.gather(*asked) == [ref_of(b"new"), b"there", True]


async def test_an_outage_is_told_rarely_and_its_end_once(store: Outage) -> None:
    """A thousand readers that wait for one store are one line, not a thousand."""
    store.away = True
    waited = Waited(store, timings=TIMINGS)
    with capture_logs() as lines:
        asked = [asyncio.ensure_future(waited.put(b"%d" % number)) for number in range(50)]
        while store.refused < 200:
            store.met.clear()
            await store.met.wait()
        store.away = False
        await asyncio.gather(*asked)

    assert [line["event"] for line in lines] == ["blob_store_away", "blob_store_back"]


async def test_after_the_limit_it_is_told_at_once(store: Outage) -> None:
    """Who answers somebody says so; the next one that asks is not kept waiting once more."""
    waited = Waited(store, 0.05, timings=BlobTimings(away=Backoff(0.001, 60.0)))
    ref = await waited.put(b"there")
    store.away = True
    with pytest.raises(NotRead):
        await waited.get(ref)
    refused = store.refused
    for ask, error in ((waited.put(b"new"), NotStored), (waited.has(ref), NotRead)):
        with pytest.raises(error):
            await ask
    assert store.refused == refused + 2
    store.away = False
    assert await waited.get(ref) == b"there"


async def test_writing_may_have_a_limit_of_its_own(store: Outage) -> None:
    """A gateway keeps a harness waiting for so long, and its reader of the log for ever."""
    waited = Waited(store, put_seconds=0.0, timings=TIMINGS)
    ref = await waited.put(b"there")
    store.away = True
    with pytest.raises(NotStored):
        await waited.put(b"new")
    reading = asyncio.ensure_future(waited.get(ref))
    store.met.clear()
    await store.met.wait()
    store.away = False
    assert await reading == b"there"


async def test_an_old_failure_says_nothing_of_now(store: Outage) -> None:
    """A store that failed once, long ago, and was not asked since is waited for anew."""
    waited = Waited(store, 0.5, timings=TIMINGS)
    store.away = True
    with pytest.raises(NotStored):
        await waited.put(b"new")
    await asyncio.sleep(3 * TIMINGS.away.longest_seconds)  # time alone makes it old
    refused = store.refused
    with pytest.raises(NotStored):
        await waited.put(b"new")
    assert store.refused > refused + 1


async def test_missing_object_is_no_outage(store: Outage) -> None:
    """It is looked for a few times, and then it is missing."""
    with pytest.raises(BlobError, match="is not in") as missing:
        await Waited(store, timings=TIMINGS).get(ref_of(b"never put"))
    assert not isinstance(missing.value, NotRead)


async def test_missing_object_in_a_store_that_lost_what_was_written_is_an_outage(tmp_path: Path) -> None:
    """An empty folder is what an unmounted one leaves; a record whose blob was there would become a dead letter."""
    folder, aside = tmp_path / "blobs", tmp_path / "aside"
    own = Store(open_blobs(str(folder)), "boot")
    await own.look()
    looked = asyncio.Event()

    async def sound() -> bool:
        looked.set()
        return await own.holds_ours()

    failing = FailingObjects(sound, lambda: own.usable_since, 600.0)
    waited = Waited(open_blobs(str(folder)), timings=TIMINGS, failing=failing)
    ref = await waited.put(b"there")
    folder.rename(aside)
    folder.mkdir()
    reading = asyncio.ensure_future(waited.get(ref))
    for _ in range(2 * TIMINGS.missing_tries):
        looked.clear()
        await looked.wait()
    assert not reading.done()
    folder.rmdir()
    aside.rename(folder)

    assert await reading == b"there"
    with pytest.raises(BlobError, match="is not in") as missing:
        await waited.get(ref_of(b"never put"))
    assert not isinstance(missing.value, NotRead)


class OneFails:
    """A store that does not give one object."""

    def __init__(self) -> None:
        self._blobs = open_blobs("memory://")
        self.put, self.has, self.remove = self._blobs.put, self._blobs.has, self._blobs.remove
        self.failing: BlobRef | None = None
        self.asked = asyncio.Event()

    async def get(self, ref: BlobRef) -> bytes:
        if ref == self.failing:
            self.asked.set()
            msg = f"did not give blob {ref.digest}: Input/output error"
            raise NotRead(msg)
        return await self._blobs.get(ref)


async def opened(store: Blobs, seconds: float) -> tuple[Waited, FailingObjects]:
    own = Store(store, "boot")
    await own.look()
    failing = FailingObjects(own.holds_ours, lambda: own.usable_since, seconds)
    return Waited(store, timings=TIMINGS, failing=failing), failing


async def test_object_that_a_sound_store_does_not_give_is_named_and_counts_as_damaged_in_the_end() -> None:
    """One object with a lasting read error stopped its partition for good, and nothing named it."""
    store = OneFails()
    waited, failing = await opened(store, seconds=0.5)
    store.failing = await waited.put(b"unreadable")
    reading = asyncio.ensure_future(waited.get(store.failing))
    while not failing.warnings():
        store.asked.clear()
        await store.asked.wait()
    assert f"blob {store.failing.digest} could not be read" in failing.warnings()[0]
    assert await waited.get(await waited.put(b"other")) == b"other"
    with pytest.raises(BlobError, match="while the store gave other objects") as lost:
        await reading
    assert not isinstance(lost.value, NotRead)

    ref, store.failing = store.failing, None
    assert await waited.get(ref) == b"unreadable"
    assert failing.warnings() == ()


async def test_object_of_a_store_that_is_away_is_waited_for(store: Outage) -> None:
    """However long it takes: an outage says nothing of an object."""
    waited, failing = await opened(store, seconds=0.0)
    ref = await waited.put(b"there")
    store.away = True
    reading = asyncio.ensure_future(waited.get(ref))
    while store.refused < 30:
        store.met.clear()
        await store.met.wait()
    assert not reading.done()
    assert failing.warnings() == ()
    store.away = False

    assert await reading == b"there"


async def test_a_store_that_hangs_is_reported_as_one_that_is_away() -> None:
    """A request without an answer would keep whoever waits for it waiting for ever."""

    class Hanging:
        async def hang(self, *_: object, **__: object) -> Any:
            await asyncio.Event().wait()

        put = get = has = remove = hang

    waited = Waited(Hanging(), 0.0, timings=BlobTimings(away=Backoff(0.001, 0.005), hang_seconds=0.01))
    for asking, error in (
        (waited.put(b"new"), NotStored),
        (waited.get(ref_of(b"new")), NotRead),
        (waited.has(ref_of(b"new")), NotRead),
        (waited.remove("0" * 64, unused_seconds=0.0), NotRemoved),
    ):
        with pytest.raises(error, match="did not answer within"):
            await asking


async def test_cancelling_ends_a_wait(store: Outage) -> None:
    """A service that stops does not hang on its store."""
    store.away = True
    task = asyncio.ensure_future(Waited(store, timings=TIMINGS).put(b"new"))
    await store.met.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
