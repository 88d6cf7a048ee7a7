"""The measurements of the gateway bench. What is compared is measured in turns: a round of each, then the next round of each."""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Final

import aiohttp
from msgspec import Struct
from proofs.bench.gateway_load import TURNS, Agent, Crowd, Http, Taken, paced, packed
from proofs.bench.gateway_parts import EngineAt, GatewayAt, RelaysAt
from proofs.bench.gateway_peers import Peer
from proofs.figures import percentile

from evener.proto.ids import new_request_id
from evener.proto.relay import CAPABILITY
from evener.proto.spec import Streaming
from evener.provider_gateway.sampling import BUFFERED_STREAM_INTERVAL

GENERATE: Final = "/inference/v1/generate"
TOKENS: Final = 8_000
LONG_TOKENS: Final = 60_000
LONG_EVERY: Final = 10
"""One session in this many opens with a long prompt."""
RECORDS: Final = [1_500, 1_700]
"""Bytes of a CallOpened and a CallClosed of these sessions."""
ACTIVE: Final = 20
LANES: Final = 8
LIVE_PER_SECOND: Final = 5.0
TOKEN_MS: Final = 4.0
"""Between two tokens, where they come one by one."""
PEERS_PER_SECOND: Final = 10.0
SLOW_TOKENS: Final = 60_000
SLOW_ROUNDS: Final = 5
SLOW_SECONDS: Final = 2.0
SLOW_PER_SECOND: Final = 20.0
NAMES: Final = count(1)

Measured = dict[str, list[float]]
"""Milliseconds by what was measured."""


class Size(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rounds: int
    seconds: float
    """The length of each turn in a round."""
    calls: int
    """The number of calls over which the CPU of one is measured."""
    per_second: float = 50.0
    sessions: int = 2_000


class Place(Struct, frozen=True, kw_only=True):
    """What is measured."""

    http: Http
    engine: EngineAt
    gateway: GatewayAt
    relays: RelaysAt | None = None


def milliseconds(taken: Sequence[Taken], *, first: bool = False) -> list[float]:
    """Return how long calls took, or their first tokens."""
    return [1000 * (one.first_seconds if first else one.seconds) for one in taken]


def median(values: Sequence[float]) -> float:
    """Return the p50."""
    return percentile(values, 0.5)


async def crowd(
    place: Place, streaming: Streaming, sessions: int, *, tokens: int = TOKENS, active: int = ACTIVE, relay: bool = False
) -> Crowd:
    """Start sessions and return their harnesses, at different turns."""
    made = Crowd(place.http, await _agents(place, streaming, sessions, tokens, relay=relay), active=active)
    await made.stagger()
    return made


async def buffered(place: Place, size: Size) -> tuple[Measured, list[Crowd]]:
    """Measure whole calls at a steady rate: the bare engine, a bare commit, through the gateway, through relay and gateway."""
    sessions = _needed(size.rounds * size.seconds * size.per_second)
    straight = await crowd(place, Streaming.BUFFERED, sessions)
    relayed = await crowd(place, Streaming.BUFFERED, sessions, relay=True)
    body = EngineAt.request(TOKENS, stream_interval=BUFFERED_STREAM_INTERVAL)
    taken: Measured = defaultdict(list)
    for _ in range(size.rounds):
        for name, one in (("engine", _bare(place, body)), ("gateway", straight.one), ("relay", relayed.one)):
            taken[name] += milliseconds(await paced(one, per_second=size.per_second, seconds=size.seconds))
        commits = await place.gateway.commits(RECORDS, per_second=size.per_second, seconds=size.seconds)
        taken["commit"] += [1000 * seconds for seconds in commits]
    return dict(taken), [straight, relayed]


async def live(place: Place, size: Size) -> tuple[Measured, list[Crowd]]:
    """Measure first tokens, from an engine that sends one token after the other."""
    await place.engine.play(per_token_ms=TOKEN_MS)
    sessions = _needed(size.rounds * size.seconds * LIVE_PER_SECOND)
    straight = await crowd(place, Streaming.LIVE, sessions, active=5)
    relayed = await crowd(place, Streaming.LIVE, sessions, active=5, relay=True)
    body = EngineAt.request(TOKENS)
    taken: Measured = defaultdict(list)
    for _ in range(size.rounds):
        for name, one in (("engine", _bare(place, body)), ("gateway", straight.one), ("relay", relayed.one)):
            taken[name] += milliseconds(await paced(one, per_second=LIVE_PER_SECOND, seconds=size.seconds), first=True)
        commits = await place.gateway.commits(RECORDS[:1], per_second=LIVE_PER_SECOND, seconds=size.seconds)
        taken["commit"] += [1000 * seconds for seconds in commits]
    await place.engine.play()
    return dict(taken), [straight, relayed]


async def cost(place: Place, streaming: Streaming, size: Size, *, token_ms: float = 0.0, relay: bool = False) -> dict[str, float]:
    """Return the CPU milliseconds of a call in the gateway's process, and in the relays'."""
    await place.engine.play(per_token_ms=token_ms)
    asking = await crowd(place, streaming, _needed(size.calls), relay=relay)
    before, relays_before = await place.gateway.cost(), await _relay_seconds(place)
    taken = await packed(asking.one, at_once=LANES, calls=size.calls)
    after, relays_after = await place.gateway.cost(), await _relay_seconds(place)
    await place.engine.play()
    each = (after.cpu_seconds - before.cpu_seconds) / len(taken)
    return {"gateway": 1000 * each, "relay": 1000 * (relays_after - relays_before) / len(taken), "per_s": 1 / each}


async def by_turn(place: Place, tokens: int, *, sessions: int) -> dict[str, float]:
    """Return milliseconds of a call, one after the other: the gateway's CPU for first calls, whose prompts are rendered whole, and for
    those that go on; and the p50 of both as the client sees them."""
    agents = list(await _agents(place, Streaming.BUFFERED, sessions, tokens, relay=False))

    async def turns(number: int) -> tuple[float, float]:
        before = await place.gateway.cost()
        taken = [await agent.ask(place.http, new_request_id()) for _ in range(number) for agent in agents]
        after = await place.gateway.cost()
        return 1000 * (after.cpu_seconds - before.cpu_seconds) / len(taken), median(milliseconds(taken))

    first, first_p50 = await turns(1)
    later, later_p50 = await turns(TURNS - 1)
    return {"first": first, "later": later, "first_p50_ms": first_p50, "later_p50_ms": later_p50}


async def crowded(place: Place, size: Size) -> dict[str, float]:
    """Hold so many calls open at once, through relays, in a gateway that has done nothing else, then let each session take a second turn.

    Returns the memory and the tasks of each session with an open call, its memory after its turns, and how many answers are not in the log.
    """
    assert place.relays
    agents = list(await _agents(place, Streaming.BUFFERED, size.sessions, TOKENS, relay=True))
    await place.engine.play(wait=[{"before": 1, "gate": "all"}])
    before, (_, relay_tasks_before) = await place.gateway.cost(), await place.relays.cost()
    asking = [asyncio.create_task(agent.ask(place.http, new_request_id())) for agent in agents]
    try:
        gathered = asyncio.create_task(place.engine.waiting(size.sessions, "all"))
        await asyncio.wait({gathered, *asking}, return_when=asyncio.FIRST_COMPLETED)  # or one is refused
        gathered.cancel()
        open_now, (_, relay_tasks) = await place.gateway.cost(), await place.relays.cost()
        await place.engine.go("all")
        answers = await asyncio.gather(*asking, return_exceptions=True)
    finally:
        await place.engine.play()
    numbered = iter(agents)
    answers += await packed(lambda: next(numbered).ask(place.http, new_request_id()), at_once=LANES, calls=size.sessions)
    after = await place.gateway.cost()
    committed = await place.gateway.committed()
    received = [answer for answer in answers if isinstance(answer, Taken)]
    lost = len(answers) - len(received) + sum(one.answer_id not in committed for one in received)
    return {
        "sessions": size.sessions,
        "calls": len(answers),
        "lost": lost,
        "rss_mb_per_session": (open_now.rss_mb - before.rss_mb) / size.sessions,
        "rss_mb_per_session_after_two_turns": (after.rss_mb - before.rss_mb) / size.sessions,
        "rss_mb": open_now.rss_mb,
        "tasks_per_call_gateway": (open_now.tasks - before.tasks) / size.sessions,
        "tasks_per_call_relay": (relay_tasks - relay_tasks_before) / size.sessions,
        "first_calls_ms_cpu": 1000 * (open_now.cpu_seconds - before.cpu_seconds) / size.sessions,
    }


async def beside_long(place: Place, size: Size) -> tuple[dict[str, float], Crowd]:
    """Return latencies while every tenth session opens with 60,000 tokens: of the other sessions' calls, and of the long openings."""
    sessions = _needed(size.rounds * size.seconds * size.per_second)
    short = await _agents(place, Streaming.BUFFERED, sessions - sessions // LONG_EVERY, TOKENS, relay=False)
    long = await _agents(place, Streaming.BUFFERED, sessions // LONG_EVERY, LONG_TOKENS, relay=False)
    mixed = chain.from_iterable(chain(islice(short, LONG_EVERY - 1), islice(long, 1)) for _ in range(sessions // LONG_EVERY))
    asking = Crowd(place.http, mixed, active=ACTIVE)
    await asking.stagger()
    taken = await paced(asking.one, per_second=size.per_second, seconds=size.rounds * size.seconds)
    others = milliseconds([one for one in taken if one.tokens == TOKENS])
    opened = milliseconds([one for one in taken if one.tokens == LONG_TOKENS and not one.turn])
    figures = {
        "others_p50_ms": median(others),
        "others_p99_ms": percentile(others, 0.99),
        "calls": len(others),
        "long_openings": len(opened),
    }
    return figures | ({"opening_p50_ms": median(opened)} if opened else {}), asking


async def slow_reader(place: Place) -> dict[str, float]:
    """Return the p50 of calls alone, and while a harness does not read a stream of megabytes; in turns. And what that stream weighs."""
    asking = await crowd(place, Streaming.BUFFERED, _needed(2 * SLOW_ROUNDS * SLOW_SECONDS * SLOW_PER_SECOND))
    started = await place.gateway.start([f"slow{next(NAMES)}" for _ in range(SLOW_ROUNDS)], Streaming.LIVE)
    body = b'{"model":"policy","stream":true,"messages":[{"role":"user","content":"Go on."}]}'
    taken: Measured = defaultdict(list)
    for one in started.values():
        taken["alone"] += milliseconds(await paced(asking.one, per_second=SLOW_PER_SECOND, seconds=SLOW_SECONDS))
        headers = {CAPABILITY: one.capability, "x-evener-request-id": new_request_id(), "content-type": "application/json"}
        before = await place.gateway.cost()
        await place.engine.play(say="word " * SLOW_TOKENS, tool_calls=[])
        url = f"{place.gateway.url}/serve/v1/chat/completions"
        async with aiohttp.ClientSession(read_bufsize=1024) as session, session.post(url, data=body, headers=headers):
            await place.engine.play()
            taken["beside"] += milliseconds(await paced(asking.one, per_second=SLOW_PER_SECOND, seconds=SLOW_SECONDS))
            taken["mb"].append((await place.gateway.cost()).rss_mb - before.rss_mb)
    names = ("alone", "beside")
    return {f"{name}_p50_ms": median(taken[name]) for name in names} | {"tokens": SLOW_TOKENS, "rss_mb": max(taken["mb"])}


async def beside(place: Place, canned: str, peer: Peer, size: Size) -> dict[str, float]:
    """Return what a peer adds to a call to its own provider, and the CPU of a call, measured in turns with ours at the same rate."""
    ours = await crowd(place, Streaming.BUFFERED, _needed(size.rounds * size.seconds * PEERS_PER_SECOND))
    theirs = Crowd(place.http, peer.agents(TOKENS), active=ACTIVE)
    await theirs.stagger()
    agent = Agent("bare", f"{canned}/v1/chat/completions", {}, TOKENS)

    async def bare() -> Taken:
        agent.turn = 0
        return await agent.ask(place.http, new_request_id(), go_on=False)

    body = EngineAt.request(TOKENS, stream_interval=BUFFERED_STREAM_INTERVAL)
    taken: Measured = defaultdict(list)
    arms = (("engine", _bare(place, body)), ("gateway", ours.one), ("canned", bare), ("peer", theirs.one))
    for _ in range(size.rounds):
        for name, one in arms:
            taken[name] += milliseconds(await paced(one, per_second=PEERS_PER_SECOND, seconds=size.seconds))
        commits = await place.gateway.commits(RECORDS, per_second=PEERS_PER_SECOND, seconds=size.seconds)
        taken["commit"] += [1000 * seconds for seconds in commits]
    before, began = peer.cpu_seconds(), await place.gateway.cost()
    calls = await packed(theirs.one, at_once=LANES, calls=size.calls // 5)
    after = peer.cpu_seconds()
    ours_calls = await packed(ours.one, at_once=LANES, calls=size.calls // 5)
    ended = await place.gateway.cost()
    return {
        "added_p50": median(taken["peer"]) - median(taken["canned"]),
        "added_p99": percentile(taken["peer"], 0.99) - percentile(taken["canned"], 0.99),
        "calls_per_s_per_core": len(calls) / (after - before),
        "ours_added_p50": median(taken["gateway"]) - median(taken["engine"]),
        "ours_added_p99": percentile(taken["gateway"], 0.99) - percentile(taken["engine"], 0.99),
        "ours_commit_p50": median(taken["commit"]),
        "ours_calls_per_s_per_core": len(ours_calls) / (ended.cpu_seconds - began.cpu_seconds),
    }


def added(measured: Measured, through: str) -> dict[str, float]:
    """Return what is added over the bare engine and a bare commit.

    `p99`: the whole call's less their medians, so that their own tails count as ours; `p99_over_p99`: less their p99.
    """
    engine, commit, whole = measured["engine"], measured["commit"], measured[through]
    return {
        "p50": median(whole) - median(engine) - median(commit),
        "p99": percentile(whole, 0.99) - median(engine) - median(commit),
        "p99_over_p99": percentile(whole, 0.99) - percentile(engine, 0.99) - percentile(commit, 0.99),
        "mean": statistics.fmean(whole) - statistics.fmean(engine) - statistics.fmean(commit),
    }


async def _agents(place: Place, streaming: Streaming, sessions: int, tokens: int, *, relay: bool) -> Iterator[Agent]:
    started = await place.gateway.start([f"s{next(NAMES)}" for _ in range(sessions)], streaming)
    if relay and place.relays is not None:
        return await place.relays.agents(started, tokens)
    return place.gateway.agents(started, tokens)


def _bare(place: Place, body: bytes) -> Callable[[], Awaitable[Taken]]:
    return lambda: place.http.ask(f"{place.engine.url}{GENERATE}", {}, body)


async def _relay_seconds(place: Place) -> float:
    return 0.0 if place.relays is None else (await place.relays.cost())[0]


def _needed(calls: float) -> int:
    """Return how many sessions so many calls take, with those that have begun."""
    return int(calls / TURNS) + 4 * ACTIVE


async def lost(crowds: Sequence[Crowd], place: Place) -> int:
    """Return how many of the answers that were received are not in the log."""
    committed = await place.gateway.committed()
    return sum(answer_id not in committed for one in crowds for answer_id in one.answer_ids)
