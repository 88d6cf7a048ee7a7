"""The programs of the gateway bench: engine, gateway, relays, each a process of its own on loopback."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct
from proofs.bench.gateway_load import CALLED, SAID, Agent, Http, Refused
from proofs.bench.gateway_relays import Door
from proofs.bench.gateway_served import Commits, Cost, Sessions, Started

from evener.proto.relay import CAPABILITY
from evener.proto.spec import Streaming

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.05
URL: Final = re.compile(r"http://(?:127\.0\.0\.1|0\.0\.0\.0|localhost):(\d+)")
CONTEXT: Final = 262_144
SAY: Final[dict[str, Any]] = {"say": SAID, "tool_calls": [CALLED]}


class Failed(Exception):
    """A program did not start, or ended."""


@asynccontextmanager
async def program(
    name: str, folder: Path, words: Sequence[str], env: Mapping[str, str] | None = None, *, tells: re.Pattern[str] = URL
) -> AsyncIterator[tuple[str, int]]:
    """Run a program until the block ends; yield the port's URL that it tells first, and its process id. Raises Failed."""
    said = folder / f"{name}.log"
    with said.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=out, stderr=out, env=env)
    try:
        async with asyncio.timeout(START_SECONDS):
            while (found := tells.search(said.read_text(errors="replace"))) is None:
                if process.returncode is not None:
                    msg = f"{name} ended with {process.returncode}: {said.read_text(errors='replace')[-2000:]}"
                    raise Failed(msg)
                await asyncio.sleep(POLL_SECONDS)
        yield f"http://127.0.0.1:{found[1]}", process.pid
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


class Policy(Struct, frozen=True, kw_only=True):
    """What engine and gateway render with."""

    source: str
    template: str | None
    renderer: str = "auto"


class EngineAt:
    """The scripted engine, in another process."""

    def __init__(self, http: Http, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._http = http

    async def play(self, rules: Sequence[Mapping[str, Any]] = (), **step: Any) -> None:
        """Say the bench's answer from now on, in this way, where none of the rules holds."""
        await self._http.post(f"{self.url}/script", json.dumps({"rules": rules, "default": {**SAY, **step}}).encode())

    async def waiting(self, count: int, gate: str) -> None:
        """Wait until so many answers wait at a gate."""
        while json.loads(await self._http.get(f"{self.url}/gates")).get(gate, {"waiting": 0})["waiting"] < count:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_SECONDS * 4)

    async def go(self, gate: str) -> None:
        """Let all pass that wait at a gate."""
        await self._http.post(f"{self.url}/go?gate={gate}&times=all")

    @staticmethod
    def request(tokens: int, *, stream_interval: int = 1) -> bytes:
        """Return a call to the engine alone, as a gateway would make it: with so many tokens in an event."""
        params = {
            "temperature": 1.0,
            "max_tokens": 4096,
            "logprobs": 0,
            "stop_token_ids": [],
            "seed": None,
            "stream_interval": stream_interval,
        }
        ids = [100 + number % 30_000 for number in range(tokens)]
        return json.dumps({"token_ids": ids, "sampling_params": params, "stream": True, "request_id": "bare"}).encode()


class GatewayAt:
    """The gateway's process, by its own endpoints and those of the hand beside it."""

    def __init__(self, http: Http, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._http = http

    async def start(self, names: Sequence[str], streaming: Streaming) -> dict[str, Started]:
        """Start sessions."""
        asked = Sessions(names=list(names), streaming=streaming)
        answer = await self._http.post(f"{self.url}/bench/start", msgspec.json.encode(asked))
        return dict(zip(names, msgspec.json.decode(answer, type=list[Started]), strict=True))

    async def end(self, names: Sequence[str]) -> None:
        """End them, so that their memory is let go."""
        await self._http.post(f"{self.url}/bench/end", msgspec.json.encode(Sessions(names=list(names))))

    async def commits(self, sizes: list[int], *, per_second: float, seconds: float) -> list[float]:
        """Commit bare records of these sizes at a steady rate; return the seconds that each commit took."""
        asked = Commits(sizes=sizes, per_second=per_second, seconds=seconds)
        return msgspec.json.decode(await self._http.post(f"{self.url}/bench/commit", msgspec.json.encode(asked)), type=list[float])

    async def cost(self) -> Cost:
        """Return the CPU time and memory that the process has used so far."""
        return msgspec.json.decode(await self._http.get(f"{self.url}/bench/cost"), type=Cost)

    async def committed(self) -> set[str]:
        """Return the ids of all answers in the log."""
        return set(msgspec.json.decode(await self._http.get(f"{self.url}/bench/answers"), type=list[str]))

    def agents(self, started: Mapping[str, Started], tokens: int) -> Iterator[Agent]:
        """Yield a harness for each session, at the gateway itself."""
        for name, one in started.items():
            yield Agent(name, f"{self.url}/serve/v1/chat/completions", {CAPABILITY: one.capability}, tokens)


class RelaysAt:
    """The relays' process."""

    def __init__(self, http: Http, url: str, pid: int) -> None:
        self.pid = pid
        self._http = http
        self._url = url

    async def agents(self, started: Mapping[str, Started], tokens: int, said: str = SAID) -> Iterator[Agent]:
        """Return a harness for each session, at a relay of its own. `said`: the text of the engine's answers."""
        return (Agent(name, *door, tokens, said) for name, door in (await self.doors(started)).items())

    async def doors(self, started: Mapping[str, Started]) -> dict[str, tuple[str, dict[str, str]]]:
        """Open a relay for each session; return the URLs that their harnesses call, and the headers with the key."""
        doors = msgspec.json.decode(await self._http.post(f"{self._url}/open", msgspec.json.encode(started)), type=dict[str, Door])
        return {name: (f"{door.url}/v1/chat/completions", {"authorization": f"Bearer {door.key}"}) for name, door in doors.items()}

    async def sent_again(self) -> int:
        """Return how often the relays have sent a request again, counted when its answer is there."""
        return int(json.loads(await self._http.get(f"{self._url}/cost"))["sent_again"])

    async def cost(self) -> tuple[float, int]:
        """Return the CPU seconds of the process so far, and the tasks of our own making in it now."""
        cost = json.loads(await self._http.get(f"{self._url}/cost"))
        return cost["cpu_seconds"], cost["tasks"]


@asynccontextmanager
async def engine(http: Http, folder: Path, policy: Policy, *, ledger: Path | None = None) -> AsyncIterator[EngineAt]:
    """Run the scripted engine. `ledger`: the file to which it appends what it is fed and samples."""
    words = ["-m", "evener.cli", "engine", "scripted", "--source", policy.source, "--template", policy.template or ""]
    words += [] if ledger is None else ["--ledger", str(ledger)]
    async with program("engine", folder, [sys.executable, *words, "--context", str(CONTEXT), "--keep", "1"]) as (url, pid):
        at = EngineAt(http, url, pid)
        await at.play()
        yield at


@asynccontextmanager
async def gateway(
    http: Http, folder: Path, policy: Policy, bus: str, engine_at: EngineAt, *, state: Path | None = None, **keys: str | int
) -> AsyncIterator[GatewayAt]:
    """Run the gateway in a folder that exists, its engine joined and checked. `keys` are further ones of its configuration."""
    template = "" if policy.template is None else f', template = "{policy.template}"'
    policies = f'[{{name = "policy", source = "{policy.source}", renderer = "{policy.renderer}"{template}}}]'
    shared = {"bus": bus, "state": str(state or folder / "state"), **keys}
    top = "".join(f"{key} = {json.dumps(value)}\n" for key, value in shared.items())
    (folder / "bench.toml").write_text(f"{top}[provider_gateway]\npolicies = {policies}\nqueue = 100000\n")
    words = [sys.executable, "-m", "proofs.bench.gateway_served", "--config", str(folder / "bench.toml")]
    async with program("gateway", folder, words) as (url, pid):
        at = GatewayAt(http, url, pid)
        await _until_ready(http, f"{url}/bench/cost")
        await http.post(f"{url}/bench/join", engine_at.url.encode())
        await _until_ready(http, f"{url}/readyz")
        yield at


@asynccontextmanager
async def relays(http: Http, folder: Path, before: str) -> AsyncIterator[RelaysAt]:
    """Run relays before the gateway at a URL, or before all that a bus lists."""
    async with program("relays", folder, [sys.executable, "-m", "proofs.bench.gateway_relays", before]) as (url, pid):
        yield RelaysAt(http, url, pid)


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[str]:
    """Run a Kafka broker; yield its address."""
    script = Path(__file__).parents[2] / "scripts" / "kafka.py"
    with (folder / "kafka.log").open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), "run", "--with-parent", stdin=DEVNULL, stdout=PIPE, stderr=out
        )
    assert process.stdout
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def _until_ready(http: Http, url: str) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not await answers(http, url):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_SECONDS)


async def answers(http: Http, url: str) -> bool:
    """Tell whether a GET is answered well."""
    try:
        await http.get(url)
    except (Refused, OSError, aiohttp.ClientError):
        return False
    return True
