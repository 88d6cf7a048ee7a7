"""make bench-recovery: what becomes of 500 open sessions when a gateway joins, leaves, is started again, freezes or dies, on Kafka.

The sessions ask through relays, without pauses, an engine that takes 50 ms a token. Every arm begins when the partitions are divided
evenly and a quiet time has passed. It ends when they are divided again and the calls are through that were open then.
"""

import argparse
import asyncio
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from msgspec import Struct, structs
from proofs.bench.gateway import tokenizers
from proofs.bench.gateway_load import SHARED_TOKENS, Agent, Http
from proofs.bench.gateway_parts import EngineAt, Policy, RelaysAt, broker, engine, relays
from proofs.bench.recovery_fleet import Fleet, fleet
from proofs.bench.recovery_ledger import Sampled, logged, spans
from proofs.bench.recovery_load import SHORT, Load, Probe, Probes, Runner, longest
from proofs.bench.sessions import WORDS
from proofs.figures import Row, percentile, report
from tests.support.other_services import OtherServices

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.proto.sessions import CallClosed
from evener.proto.topics import Topic
from evener.service.auth import load_secrets

NAMES: Final = ("g0", "g1", "g2")
PARTITIONS: Final = 64
TOKEN_MS: Final = 50
BLOCK: Final = 20
"""The number of tokens in one event of the engine's stream."""
CALLED_TOKENS: Final = 26
"""The size of the tool call that ends each answer."""
FREEZE_SECONDS: Final = 12.0
"""Twice the group's session time-out."""
ARM_SECONDS: Final = 240.0
PLANNED: Final = frozenset({"quiet", "join", "leave", "restart"})
"""The arms without a fault: in them no request may be sent again."""
PLANNED_OR_FROZEN: Final = frozenset({"join", "leave", "restart", "freeze"})
"""The arms over which the tokens sampled in vain are counted."""


class Size(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    sessions: int
    answer_tokens: int
    quiet_seconds: float


FULL: Final = Size(sessions=500, answer_tokens=400, quiet_seconds=10.0)
QUICK: Final = Size(sessions=24, answer_tokens=80, quiet_seconds=3.0)


class Arm(Struct, frozen=True, kw_only=True):
    """The effects of one disturbance."""

    name: str
    seconds: float
    """From the disturbance until the partitions were divided again."""
    first_answer_seconds: float | None
    """From the disturbance to the first answer in a partition of the gateway, to a call that was asked after it."""
    waits: tuple[float, ...]
    """The longest wait for a short call, in each partition that was the gateway's, or in all when one joined."""
    noticed: tuple[str, ...]
    """What harnesses noticed: errors, and answers that were cut."""
    sent_again: int
    """The number of requests that relays sent again."""
    moves_needed: int
    moves_made: int
    ledger_from: int
    ledger_to: int


class Bench:
    """Gateways under load, and what was measured so far."""

    def __init__(self, fleet_of: Fleet, load: Load, probes: Probes, relays_at: RelaysAt, ledger: Path) -> None:
        self.fleet = fleet_of
        self.arms: list[Arm] = []
        self._load = load
        self._probes = probes
        self._relays = relays_at
        self._ledger = ledger

    async def all_arms(self, size: Size) -> None:
        """Measure one arm after the other. Raises TimeoutError when the partitions are not divided again."""
        arms: Mapping[str, tuple[Callable[[], Awaitable[object]], str | None, Sequence[str]]] = {
            "join": (lambda: self.fleet.start("g3"), None, (*NAMES, "g3")),
            "leave": (lambda: self.fleet.stop("g3"), "g3", NAMES),
            "restart": (self._restart, "g1", NAMES),
            "freeze": (self._freeze, "g1", NAMES),
            "kill": (self._kill, "g2", NAMES[:2]),
        }
        moves = {"join": PARTITIONS // 4, "leave": 0, "restart": PARTITIONS // 3, "freeze": PARTITIONS // 3, "kill": 0}
        for name, (strike, victim, names) in arms.items():
            await self._arm("quiet", lambda: asyncio.sleep(size.quiet_seconds), None, NAMES if name != "leave" else (*NAMES, "g3"), 0)
            await self._arm(name, strike, victim, names, moves[name])

    async def _arm(self, name: str, strike: Callable[[], Awaitable[object]], victim: str | None, names: Sequence[str], coming: int) -> None:
        """Disturb, and wait until everything is as before. `coming`: how many partitions a gateway has to be given that comes (back)."""
        sys.stderr.write(f"{name} ...\n")
        had = self.fleet.of(victim) if victim else frozenset()
        noticed, sent_again, taken_over = self._noticed(), await self._relays.sent_again(), self.fleet.taken_over
        ledger_from, at = self._ledger.stat().st_size, time.monotonic()
        async with asyncio.timeout(ARM_SECONDS):
            striking = asyncio.ensure_future(strike())
            await asyncio.sleep(0)  # the signal is sent
            async with self._probes.asking() as probes:
                await striking
                await self.fleet.serve(names)
                seconds = time.monotonic() - at
                if name != "quiet":
                    await self._load.through()
        self.arms.append(
            Arm(
                name=name,
                seconds=seconds,
                first_answer_seconds=_first(probes, had, at),
                waits=tuple(longest(probes, had or range(PARTITIONS))),
                noticed=tuple(self._noticed()[len(noticed) :]),
                sent_again=await self._relays.sent_again() - sent_again,
                moves_needed=len(had) + coming,
                moves_made=self.fleet.taken_over - taken_over,
                ledger_from=ledger_from,
                ledger_to=self._ledger.stat().st_size,
            )
        )

    def _noticed(self) -> list[str]:
        both = [*self._load.noticed, *self._probes.noticed]
        return [one.what for one in sorted(both, key=lambda one: one.at)]

    async def _restart(self) -> None:
        await self.fleet.stop("g1")
        await self.fleet.start("g1")

    async def _freeze(self) -> None:
        self.fleet.tell("g1", signal.SIGSTOP)
        await asyncio.sleep(FREEZE_SECONDS)
        self.fleet.tell("g1", signal.SIGCONT)

    async def _kill(self) -> None:
        self.fleet.tell("g2", signal.SIGKILL)


def _first(probes: Sequence[Probe], partitions: frozenset[int], at: float) -> float | None:
    return min((one.at + one.seconds - at for one in probes if one.partition in partitions), default=None)


def answer(tokens: int) -> str:
    """Return a text with which the engine's answer has about so many tokens."""
    return " ".join(itertools.islice(itertools.cycle(WORDS), tokens - CALLED_TOKENS))


async def measure(size: Size) -> None:
    """Measure all arms, and leave outputs/bench-recovery.json."""
    policy = Policy(source=f"hf:{await tokenizers() / 'qwen3'}", template=None)
    said, began, load_before = answer(size.answer_tokens), time.monotonic(), os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evener-recovery-")))
        http = await stack.enter_async_context(Http())
        servers = await stack.enter_async_context(broker(folder))
        url, state, ledger = f"kafka://{servers}?prefix=recovery.", folder / "state", folder / "ledger.jsonl"
        bus = await stack.enter_async_context(open_bus(url, partitions=PARTITIONS))
        engine_at = await stack.enter_async_context(engine(http, folder, policy, ledger=ledger))
        await _script(engine_at, said)
        others = OtherServices(bus, open_blobs(str(state / "blobs")))
        await others.join("e1", engine_at.url, max_concurrency=4 * size.sessions + PARTITIONS)
        gateways = await stack.enter_async_context(fleet(folder, policy, url, bus, state))
        await gateways.start(*NAMES)
        async with asyncio.timeout(ARM_SECONDS):
            await gateways.serve(NAMES)
        relays_at = await stack.enter_async_context(relays(http, folder, url))
        runner = Runner(others, load_secrets(state), relays_at)

        async def agent(name: str) -> Agent:
            (opened,) = await relays_at.agents(await runner.start([name]), SHARED_TOKENS, said)
            return opened

        load = Load(http, agent)
        bench = Bench(gateways, load, Probes(http, await runner.in_partitions()), relays_at, ledger)
        running = asyncio.create_task(load.run(size.sessions, within=size.answer_tokens * TOKEN_MS / 1000))
        stopped = None
        try:
            async with asyncio.timeout(ARM_SECONDS):
                await load.begun(size.sessions)
            await bench.all_arms(size)
        except TimeoutError:
            stopped = f"the arm after {bench.arms[-1].name if bench.arms else 'the start'} did not end within {ARM_SECONDS} s"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        closed = await others.read(Topic.SESSIONS, CallClosed)
        marks = [mark for arm in bench.arms for mark in (arm.ledger_from, arm.ledger_to)]
        sampled = spans(ledger, marks, logged(closed))[::2]
        lost = {taken.answer_id for taken in load.answered} - {event.answer_id for event in closed}
    about = {
        **figures(bench.arms, sampled),
        "stopped": stopped,
        "answers": len(load.answered),
        "answers_not_in_log": len(lost),
        "answer_seconds": {
            "p50": percentile([one.seconds for one in load.answered], 0.5),
            "max": max(one.seconds for one in load.answered),
        },
        "size": msgspec.to_builtins(size),
        "partitions": PARTITIONS,
        "bench_seconds": time.monotonic() - began,
        "load_before": load_before,
        "noticed_what": [what for arm in bench.arms for what in arm.noticed],
    }
    report("bench-recovery", "Recovery", rows(bench.arms, sampled), open_sessions=size.sessions, **about)


def _median_and_longest(seconds: Sequence[float]) -> dict[str, float]:
    return {"p50": percentile(seconds, 0.5), "max": max(seconds)}


async def _script(engine_at: EngineAt, said: str) -> None:
    short = {"match": SHORT, "tail": 200, "say": "Yes."}
    await engine_at.play([short], say=said, per_token_ms=TOKEN_MS, block=BLOCK)


def figures(arms: Sequence[Arm], sampled: Sequence[Sampled]) -> dict[str, Any]:
    """Return the figures over all arms."""
    spent = [one for arm, one in zip(arms, sampled, strict=True) if arm.name in PLANNED_OR_FROZEN]
    kill = next((arm for arm in arms if arm.name == "kill"), None)
    return {
        "seconds": None if kill is None else kill.first_answer_seconds,
        "seconds_p50": None if kill is None else percentile(kill.waits, 0.5),
        "seconds_max": None if kill is None else max(kill.waits),
        "noticed": sum(len(arm.noticed) for arm in arms),
        "wasted_token_share": sum(one.wasted for one in spent) / max(sum(one.tokens for one in spent), 1),
        "resent_undisturbed": sum(arm.sent_again for arm in arms if arm.name in PLANNED),
        "moves": {"needed": sum(arm.moves_needed for arm in arms), "made": sum(arm.moves_made for arm in arms)},
    }


def rows(arms: Sequence[Arm], sampled: Sequence[Sampled]) -> list[Row]:
    """Return a line for each arm."""
    return [
        {
            "arm": arm.name,
            "seconds": arm.seconds,
            "first_answer_s": arm.first_answer_seconds,
            "wait_p50_s": percentile(arm.waits, 0.5),
            "wait_max_s": max(arm.waits),
            "noticed": len(arm.noticed),
            "sent_again": arm.sent_again,
            "moves_needed": arm.moves_needed,
            "moves_made": arm.moves_made,
            "tokens": spent.tokens,
            "wasted": spent.wasted,
        }
        for arm, spent in zip(arms, sampled, strict=True)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make bench-recovery")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that everything works")
    parser.add_argument("--sessions", type=int, help="how many are open at a time (500; --quick 24)")
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    uvloop.run(measure(size if given.sessions is None else structs.replace(size, sessions=given.sessions)))
