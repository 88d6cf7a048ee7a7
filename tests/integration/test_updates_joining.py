"""Engines that join, come back, or call their weights otherwise: proven before any gateway uses them."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.engines import Play
from tests.support.gateway import Hand, gateway
from tests.support.service_context import operator, running_service
from tests.support.updates import (
    bridge,
    canary,
    events,
    join,
    passing_through,
    publish,
    scored,
    state,
    trained,
    until_state,
)
from tests.support.waiting import eventually, until
from tests.support.weights_folders import save_weights
from tokenizers import Tokenizer

from evener.engines.scripted import Script, scripted_engine
from evener.engines.vllm_weights import VllmWeights
from evener.proto.arrays import int32s
from evener.proto.fleet import EngineJoined, EngineLeft, PolicyPublished
from evener.proto.sessions import CallClosed
from evener.proto.topics import Topic
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings
from evener.service.published import loaded_label, proven_label
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.service import open_service

PROVEN = ("policy@1", False)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Weights of versions 1, 2 and 3."""
    return [save_weights(tmp_path / f"step-{number}", number) for number in (1, 2, 3)]


async def given(url: str, label: str, path: Path) -> None:
    """Load weights into an engine by hand, under a label."""
    control = VllmWeights(url)
    await control.load(str(path))
    await control.relabel(label)
    await control.aclose()


async def until_scored(url: str, known: list[float]) -> None:
    """Wait until an engine samples by weights."""
    await until(lambda: scored(url), lambda found: found == pytest.approx(known))


def loads(into: list[str]) -> Any:
    """Note the folders that an engine is asked to load."""

    def note(path: str, body: Any, answer: Any) -> Any:
        if answer is None and path == "/collective_rpc":
            into.append(Path(body["kwargs"]["weights_path"]).name)
        return answer

    return note


@pytest.mark.parametrize("label", ["other@1", "step-1", "policy@1", "policy:0123456789ab@1"])
async def test_an_engine_whose_label_merely_ends_in_the_number_is_loaded(
    tmp_path: Path, play: Play, folders: list[Path], label: str
) -> None:
    """It was left by another run, or samples another policy: its tokens would be trained as this version's."""
    known = await trained((await play(Script())).url, folders[0])
    old = await play(Script())
    await given(old.url, label, folders[2])
    async with bridge(tmp_path / "state") as (parts, http):
        assert (await publish(http, folders[0], 1, canary=canary(known)))[0] == 201
        await join(parts, old.url)
        await until_scored(old.url, known)
        await until_state(old.url, PROVEN)


@pytest.mark.parametrize("by_trainer", [True, False], ids=["the trainer's logprobs", "the engines' own"])
async def test_an_engine_that_says_it_has_the_version_has_to_prove_it(
    tmp_path: Path, play: Play, folders: list[Path], *, by_trainer: bool
) -> None:
    """Whoever labelled it: the canary was kept with the version, and its weights are loaded when it fails."""
    known = await trained((await play(Script())).url, folders[0])
    first, late = await play(Script()), await play(Script())
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, first.url, "first")
        assert (await publish(http, folders[0], 1, **({"canary": canary(known)} if by_trainer else {})))[0] == 201
        published = (await events(parts))[-1]
        joined = EngineJoined(engine_id="late", kind="scripted", url=late.url, policy="policy", joined_at=1.0)
        await given(late.url, proven_label(published, joined), folders[2])
        await join(parts, late.url, "late", at=2.0)
        await until_scored(late.url, known)
        await until_state(late.url, PROVEN)


async def test_an_engine_that_shows_its_label_wrong_and_cannot_be_loaded_leaves(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Nobody knows its weights."""
    first, late = await play(Script()), await play(Script())
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, first.url, "first")
        await publish(http, folders[0], 1)
        await given(late.url, loaded_label((await events(parts))[-1]), folders[2])
        shutil.rmtree(folders[0])
        await join(parts, late.url, "late")
        assert await until_left(parts) == ["late"]
        assert await state(first.url) == PROVEN


async def test_an_engine_that_keeps_its_earlier_version_when_it_joins_leaves(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """It was away during an update, came back, says that it loads, and does not. No logprob of the trainer's is needed to see it."""
    there, away = await play(Script()), await play(Script())
    lenient = canary([-1.0] * 9) | {"tolerance": 1000.0}
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, there.url, "there")
        await join(parts, away.url, "away")
        await publish(http, folders[0], 1, canary=lenient)
        await join(parts, "http://127.0.0.1:9", "away", at=2.0)
        status, said = await publish(http, folders[1], 2, canary=lenient)
        assert (status, [update["engine_id"] for update in said["engines"]]) == (201, ["there"])
        away.play(Script(reload="ignore"))
        await join(parts, away.url, "away", at=3.0)
        assert await until_left(parts) == ["away"]


async def until_left(parts: Any) -> list[str]:
    return [one.engine_id for one in await until(lambda: events(parts, Topic.FLEET))]


async def test_an_engine_that_joins_again_is_proven_and_not_loaded(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """With another limit, or after a restart of Evener: its weights are there, and need not be read again."""
    engine, loaded = await play(Script()), list[str]()
    async with passing_through(engine.url, loads(loaded)) as url:
        async with bridge(tmp_path / "state") as (parts, http):
            await join(parts, url)
            await publish(http, folders[0], 1)
            first = await label_of(engine.url)
        shutil.rmtree(folders[0])
        async with bridge(tmp_path / "state") as (parts, _):
            await join(parts, url, at=2.0)
            await until(lambda: label_of(engine.url), lambda label: label != first)
            assert await state(engine.url) == PROVEN
            assert await events(parts, Topic.FLEET) == []
    assert loaded == ["step-1"]


async def label_of(url: str) -> str:
    control = VllmWeights(url)
    try:
        return await control.label()
    finally:
        await control.aclose()


@pytest.fixture
async def hand(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Hand]:
    """A gateway whose engine e1 serves."""
    async with gateway(tmp_path, Script(), timings=getattr(request, "param", GATEWAY_TIMINGS)) as opened:
        yield opened


async def versions_of(hand: Hand, session_id: str) -> set[int]:
    """Make a call; return the versions of its tokens."""
    await hand.say(await hand.start(session_id), [{"role": "user", "content": "Hello"}], max_tokens=4)
    closed: CallClosed = await hand.until(session_id, CallClosed)
    return set(int32s(closed.choices[0].versions).tolist())


@asynccontextmanager
async def bridge_of(hand: Hand) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a bridge beside the gateway; yield an operator's client of it."""
    token = hand.context.secrets.operator_token
    async with open_service(Config(), hand.context) as service, running_service(service), operator(service.routes, token) as http:
        yield http


async def test_the_gateway_gives_no_call_to_an_engine_before_it_has_proven_the_version(hand: Hand, play: Play, folders: list[Path]) -> None:
    """Not even to one whose label has the right number, or names the right weights."""
    late = await play(Script())
    async with bridge_of(hand) as http:
        assert (await publish(http, folders[0], 1))[0] == 201
        (published,) = [event for event in await events(hand.context) if isinstance(event, PolicyPublished)]
    assert await versions_of(hand, "before") == {1}
    await hand.events.send(Topic.FLEET, "e1", EngineLeft(engine_id="e1", left_at=2.0))
    await given(late.url, loaded_label(published), folders[0])
    await hand.join("late", late.url)
    asking = asyncio.ensure_future(versions_of(hand, "after"))
    await hand.measured("evener_calls_waiting", 1)
    assert late.ledger == []
    async with bridge_of(hand):
        async with asyncio.timeout(60):
            assert await asking == {1}
    assert len(late.ledger) == 1


@pytest.mark.parametrize("hand", [GatewayTimings(engine_probe=0.2)], indirect=True, ids=[""])
async def test_an_engine_that_is_started_again_at_its_url_gets_no_call_before_it_has_the_version(
    hand: Hand, smollm_tokenizer: Tokenizer, folders: list[Path], unused_tcp_port: int
) -> None:
    """Its weights are those that it was started with, and nobody says that it left. The gateway's probe sees that it was away."""
    await hand.events.send(Topic.FLEET, "e1", EngineLeft(engine_id="e1", left_at=2.0))
    async with bridge_of(hand) as http:
        async with scripted_engine(Script(), smollm_tokenizer, port=unused_tcp_port) as engine:
            await hand.join("again", engine.url)
            assert await versions_of(hand, "first") == {0}
            assert (await publish(http, folders[0], 1))[0] == 201
            assert await versions_of(hand, "second") == {1}
        await eventually(lambda: not hand.ready()["engine"])
        async with scripted_engine(Script(), smollm_tokenizer, port=unused_tcp_port):
            assert await versions_of(hand, "third") == {1}
