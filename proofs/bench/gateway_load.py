"""The load of a gateway bench: sessions of twenty turns whose histories grow, at a steady rate or one call after the other."""

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import aiohttp
from msgspec import Struct, structs
from proofs.bench.sessions import WORDS

from evener.proto.ids import new_request_id

TURNS: Final = 20
SHARED_TOKENS: Final = 5_500
"""The size of the system message and the tools, which are the same in all sessions, as if one harness sent them."""
RESULT_TOKENS: Final = 80
FILE_TOKENS: Final = 2_000
"""A long first prompt comes in user messages of this size, as files that are attached."""
SAID: Final = " ".join(itertools.islice(itertools.cycle(WORDS), 38))
CALLED: Final[dict[str, Any]] = {"name": "read", "arguments": {"path": "src/evener/values.py", "offset": 120}}
"""The answer: 64 tokens with the marks of a tool call."""
TOOL_COUNT: Final = 12

SILENCE_SECONDS: Final = 600.0
FIRST: Final = re.compile(rb'"(?:content|reasoning_content)":\s*"[^"]|"token_ids":\s*\[\d')
"""What a stream has as soon as its first token is in it."""
CALL_ID: Final = re.compile(rb'"tool_calls":\s*\[\{[^}]*?"id":\s*"([^"]+)"')
ANSWER_ID: Final = re.compile(rb'"id":\s*"chatcmpl-([^"]+)"')
END: Final = b"[DONE]"


class Taken(Struct, frozen=True):
    """One call, by the client's clock."""

    seconds: float
    first_seconds: float
    turn: int
    body: bytes
    tokens: int = 0
    """The approximate size of the middle prompt of its session."""

    @property
    def answer_id(self) -> str | None:
        """The id by which the log knows the answer. None: there is no answer."""
        found = ANSWER_ID.search(self.body)
        return None if found is None else found[1].decode()


class Refused(Exception):
    """A call had no whole answer."""


class Http:
    """A client of many connections."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_read=SILENCE_SECONDS)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, url: str, headers: Mapping[str, str], body: bytes, turn: int = 0) -> Taken:
        """Send a request and read its whole answer. Raises Refused."""
        parts: list[bytes] = []
        began, first = time.perf_counter(), 0.0
        async with self._session.post(url, data=body, headers={"content-type": "application/json", **headers}) as response:
            async for part in response.content.iter_any():
                if not first and FIRST.search(part):
                    first = time.perf_counter()
                parts.append(part)
        ended = time.perf_counter()
        whole = b"".join(parts)
        if response.status != 200 or END not in whole:
            msg = f"{url} answered {response.status}: {whole[-400:]!r}"
            raise Refused(msg)
        return Taken(ended - began, (first or ended) - began, turn, whole)

    async def post(self, url: str, body: bytes = b"") -> bytes:
        """Return the body of an answer that is none to a call. Raises Refused."""
        async with self._session.post(url, data=body) as response:
            return await _whole(response)

    async def get(self, url: str) -> bytes:
        """The same for a GET."""
        async with self._session.get(url) as response:
            return await _whole(response)


class Agent:
    """One session's harness: it calls a tool in every turn."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str], tokens: int, said: str = SAID) -> None:
        """`tokens`: of the middle prompt of the session, about. `said`: the text of the engine's answers."""
        self.name = name
        self.turn = 0
        self._url = url
        self._headers = headers
        self._random = random.Random(name)  # noqa: S311 - repeatable on purpose
        self._tokens = tokens
        self._said = said
        own = tokens - SHARED_TOKENS - (RESULT_TOKENS + 100) * TURNS // 2
        texts = [f"This is {name}. {self._words(min(max(own, 20) - at, FILE_TOKENS))}" for at in range(0, max(own, 20), FILE_TOKENS)]
        self._messages = [SYSTEM, *(json.dumps({"role": "user", "content": text}) for text in texts)]

    @property
    def over(self) -> bool:
        """Whether it has had its turns."""
        return self.turn >= TURNS

    async def ask(self, http: Http, request_id: str, *, go_on: bool = True) -> Taken:
        """Take a turn; `go_on`: its answer and a tool's result are the history of the next one."""
        body = f'{{"model":"policy","stream":true,"tools":{TOOLS},"messages":[{",".join(self._messages)}]}}'.encode()
        taken = await http.ask(self._url, {**self._headers, "x-evener-request-id": request_id}, body, self.turn)
        self.turn += 1
        if go_on and not self.over:
            self._go_on(taken.body)
        return structs.replace(taken, tokens=self._tokens)

    def _go_on(self, answer: bytes) -> None:
        found = CALL_ID.search(answer)
        if found is None:
            msg = f"no tool call in {answer[-400:]!r}"
            raise Refused(msg)
        call_id = found[1].decode()
        called = {"id": call_id, "type": "function", "function": {**CALLED, "arguments": json.dumps(CALLED["arguments"])}}
        self._messages.append(json.dumps({"role": "assistant", "content": self._said, "tool_calls": [called]}))
        self._messages.append(json.dumps({"role": "tool", "tool_call_id": call_id, "content": self._words(RESULT_TOKENS)}))

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))


class Crowd:
    """Agents that take turns; who has had all of its turns makes room for a new one."""

    def __init__(self, http: Http, agents: Iterator[Agent], *, active: int) -> None:
        self.answer_ids: list[str] = []
        """The ids of all answers that were received."""
        self._http = http
        self._agents = agents
        self._idle: asyncio.Queue[Agent] = asyncio.Queue()
        self._first = list(itertools.islice(agents, active))
        for agent in self._first:
            self._idle.put_nowait(agent)

    async def stagger(self) -> None:
        """Bring the agents to different turns, so that every part of a session is measured at any time."""
        for number, agent in enumerate(self._first):
            for _ in range(number % TURNS):
                await self._ask(agent)

    async def one(self) -> Taken:
        """Let the session that has waited longest take a turn; if none waits, begin a new one, as long as there is one."""
        new = next(self._agents, None) if self._idle.empty() else None
        agent = await self._idle.get() if new is None else new
        taken = await self._ask(agent)
        after = next(self._agents, None) if agent.over else agent
        if after is not None:
            self._idle.put_nowait(after)
        return taken

    async def _ask(self, agent: Agent) -> Taken:
        taken = await agent.ask(self._http, new_request_id())
        if taken.answer_id is not None:
            self.answer_ids.append(taken.answer_id)
        return taken


async def paced(one: Callable[[], Awaitable[Taken]], *, per_second: float, seconds: float) -> list[Taken]:
    """Begin calls at a steady rate, whether or not earlier ones are through (an open loop)."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        asked = []
        for number in range(int(per_second * seconds)):
            await asyncio.sleep(max(0.0, began + number / per_second - time.perf_counter()))
            asked.append(tasks.create_task(_awaited(one())))
    return [task.result() for task in asked]


async def packed(one: Callable[[], Awaitable[Taken]], *, at_once: int, calls: int) -> list[Taken]:
    """Make so many calls, some at a time (a closed loop)."""
    numbers = iter(range(calls))

    async def lane() -> list[Taken]:
        return [await one() for _ in numbers]

    return [taken for lane_taken in await asyncio.gather(*(lane() for _ in range(at_once))) for taken in lane_taken]


async def _awaited(asking: Awaitable[Taken]) -> Taken:
    return await asking


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = await response.read()
    if not response.ok:
        msg = f"{response.url} answered {response.status}: {body[:400]!r}"
        raise Refused(msg)
    return body


def _tools(drawn: random.Random) -> Sequence[dict[str, Any]]:
    def text(count: int) -> str:
        return " ".join(drawn.choices(WORDS, k=count))

    def tool(name: str) -> dict[str, Any]:
        fields = {field: {"type": "string", "description": text(20)} for field in ("path", "offset", "limit", "reason")}
        function = {"name": name, "description": text(120), "parameters": {"type": "object", "properties": fields}}
        return {"type": "function", "function": function}

    return [tool("read"), *(tool(f"tool_{number}") for number in range(1, TOOL_COUNT))]


_drawn: Final = random.Random("shared")  # noqa: S311 - repeatable on purpose
TOOLS: Final = json.dumps(_tools(_drawn))
SYSTEM: Final = json.dumps({"role": "system", "content": " ".join(_drawn.choices(WORDS, k=SHARED_TOKENS - 3_500))})
