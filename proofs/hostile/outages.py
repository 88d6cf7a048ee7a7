"""What is around Evener is away for a while: its blob store, in the middle of calls, builds, gradings and merges."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from proofs.hostile.bodies import long_prompt
from proofs.hostile.dialect import CHAT
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import Site

AWAY_SECONDS: Final = 8.0
"""Longer than readers once waited."""
SESSIONS: Final = 3


@contextmanager
def blobs_away(site: Site) -> Iterator[None]:
    """Put a file in the place of the blob store's folder: nothing can be read or written there, and nothing says that it is missing."""
    blobs, aside = site.state / "blobs", site.state / "blobs.aside"
    blobs.rename(aside)
    blobs.touch()
    try:
        yield
    finally:
        blobs.unlink()
        aside.rename(blobs)


async def _long_session(site: Site, begun: asyncio.Event) -> None:
    """Ask twice with a history whose records have blobs."""
    salt = site.name("away")
    async with site.session() as session:
        asked = CHAT.text(long_prompt(salt))
        CHAT.check(await session.post(CHAT.path, asked), refused=False)
        begun.set()
        more = {**asked, "messages": [*asked["messages"], {"role": "assistant", "content": "x"}, {"role": "user", "content": "Again."}]}
        CHAT.check(await session.post(CHAT.path, more), refused=None)


async def store_away(site: Site) -> None:
    """Take the blob store away while sessions call, end, are built, graded and merged. All of them are merged when it is back."""
    begun = asyncio.Event()
    first = len(site.tasks)
    sessions = [asyncio.create_task(_long_session(site, begun)) for _ in range(SESSIONS)]
    working = [asyncio.create_task(site.work(["exit_code", "0"])) for _ in range(SESSIONS)]
    await begun.wait()
    with blobs_away(site):
        await asyncio.sleep(AWAY_SECONDS)
    await asyncio.gather(*sessions, *working)
    ended = [await site.ended(task_id) for task_id in site.tasks[first:] if not task_id.startswith("canary")]
    lost = [f"{each.task.task_id}: {each.task.outcome} {each.task.reason}" for each in ended if each.task.outcome != "merged"]
    if lost:
        msg = f"not merged after the blob store was away for {AWAY_SECONDS:g} s: {lost}"
        raise Unexpected(msg)


OUTAGES: Final = (Input(kind=Kind.OUTAGES, name="the blob store is away for 8 s", act=store_away, seconds=60, review="1.3"),)
