"""What goes wrong around an update: weights that stay, folders that change, engines that hang, bridges and names that are others."""

import asyncio
import shutil
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tests.integration.test_bridge import outcomes, write
from tests.support.builders import group, heartbeat
from tests.support.engines import Play
from tests.support.loop import turns
from tests.support.scheduler import scheduler
from tests.support.service_context import open_parts, serving
from tests.support.updates import (
    IDS,
    bridge,
    canary,
    events,
    join,
    passing_through,
    publish,
    scored,
    serve,
    state,
    trained,
    until_state,
)
from tests.support.waiting import until
from tests.support.weights_folders import save_weights

from evener.client.errors import Unavailable
from evener.engines.answers import join as joined_chunks
from evener.engines.port import GenerateRequest
from evener.engines.scripted import Rule, Script, Wait
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import PolicyPublished, PolicyStaged
from evener.proto.spec import Sampling
from evener.proto.topics import Topic
from evener.runtime.backoff import Backoff
from evener.service.auth import load_secrets
from evener.service.events import EventLog
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.rollout_gate import RolloutGate
from evener.trainer_bridge.service import open_service


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Weights of versions 1, 2 and 3."""
    return [save_weights(tmp_path / f"step-{number}", number) for number in (1, 2, 3)]


async def test_weights_that_stay_are_found_at_the_first_version_too(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Nobody knows what the engine was started with: its logprobs have to change, and the error says what equal weights are."""
    engine = await play(Script(reload="ignore"))
    before = await scored(engine.url)
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, engine.url)
        status, said = await publish(http, folders[0], 1)

        assert status == 422
        assert "engine e1 has stale weights" in said["error"]["message"]
        assert "weights that equal those it was started with are version 0" in said["error"]["message"]
        assert await state(engine.url) == ("policy@0", False)
        assert await scored(engine.url) == before


async def test_weights_that_stay_are_found_where_the_folder_before_is_gone(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Its digest is in the log. The engine needs no folder to have the version before: it kept it."""
    engine = await play(Script())
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, engine.url)
        await publish(http, folders[0], 1)
        good = await scored(engine.url)
        shutil.rmtree(folders[0])
        engine.play(Script(reload="ignore"))
        status, said = await publish(http, folders[1], 2)

        assert status == 422
        assert "engine e1 has stale weights" in said["error"]["message"]
        assert await events(parts, Topic.FLEET) == []
        assert await state(engine.url) == ("policy@1", False)
        assert await scored(engine.url) == good


def started_with(origin: Path) -> Any:
    """Let an engine say that it was started with a folder."""

    def change(path: str, _: Any, answer: Any) -> Any:
        if answer is not None and path == "/v1/models":
            answer["data"][0]["root"] = str(origin)
        return answer

    return change


async def test_the_folder_that_an_engine_was_started_with_is_no_version(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """A trainer that writes over it would leave nothing to go back to, and hide that an engine kept its weights. A copy is one."""
    engine = await play(Script(reload="ignore"))
    copy = save_weights(tmp_path / "copy", 1)
    async with bridge(tmp_path / "state") as (parts, http), passing_through(engine.url, started_with(folders[0])) as url:
        await join(parts, url)
        status, said = await publish(http, folders[0], 1)
        assert (status, said["error"]["field"]) == (422, "path")
        assert "is what engine e1 was started with (version 0), which must stay" in said["error"]["message"]
        assert (await publish(http, copy, 1))[0] == 201


async def test_a_folder_that_has_changed_is_not_loaded(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Neither to bring an engine to the version before, nor to bring it back there."""
    engine, loaded = await play(Script()), list[str]()

    def note(path: str, body: Any, answer: Any) -> Any:
        if answer is None and path == "/collective_rpc":
            loaded.append(Path(body["kwargs"]["weights_path"]).name)
        return answer

    async with bridge(tmp_path / "state") as (parts, http), passing_through(engine.url, note) as url:
        await publish(http, folders[0], 1)
        save_weights(folders[0], 99)
        await join(parts, url)
        status, said = await publish(http, folders[1], 2)
        assert (status, loaded) == (201, ["step-2"])
        assert said["engines"][0]["change"] > 0.1

        save_weights(folders[1], 98)
        status, _ = await publish(http, folders[2], 3, canary=canary([-1.0] * len(IDS[1:])))
        assert (status, loaded) == (422, ["step-2", "step-3"])
        assert [left.engine_id for left in await events(parts, Topic.FLEET)] == ["e1"]


async def test_an_engine_paused_in_mid_update_is_named_when_nothing_can_be_loaded(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Its weights may be half of each: it is not let go on, and takes the next version from whoever has one."""
    engine, other = await play(Script()), await play(Script())
    async with bridge(tmp_path / "state") as (parts, http):
        await publish(http, folders[0], 1)
        shutil.rmtree(folders[0])
        control = VllmWeights(engine.url)
        await control.pause()
        await control.aclose()
        await join(parts, engine.url)
        status, said = await publish(http, folders[1], 2)
        assert status == 503
        assert "e1: it is paused in the middle of an update" in said["error"]["message"]
        await join(parts, other.url, "other")
        status, said = await publish(http, folders[1], 2)
        assert (status, [update["engine_id"] for update in said["engines"]]) == (201, ["other"])
        await until_state(engine.url, ("policy@2", False))
        assert await scored(engine.url) == await scored(other.url)


HUNG_SECONDS = 10.0
"""More than an engine that is well needs on a busy machine."""


async def test_an_engine_that_hangs_leaves_and_stops_neither_the_others_nor_other_policies(
    tmp_path: Path, play: Play, folders: list[Path]
) -> None:
    """While it is waited for, groups of other policies are delivered; after `load_seconds` it is evicted, with an alarm."""
    good, hung = await play(Script()), await play(Script())
    held = asyncio.Event()
    async with bridge(tmp_path / "state", load_seconds=HUNG_SECONDS) as (parts, http), passing_through(hung.url, hold=held) as url:
        await join(parts, good.url, "good")
        await join(parts, url, "hung")
        publishing = asyncio.ensure_future(publish(http, folders[0], 1))
        await until_paused(hung.url)
        await write(parts, group((1.0, 0.0), policy="another"))
        await until_delivered(parts, 1)
        assert not publishing.done()
        status, said = await publishing

        assert (status, [update["engine_id"] for update in said["engines"]]) == (201, ["good"])
        assert said["warnings"] == [
            "engine hung has not got it yet: engine hung took longer than 10 s over its weights",
        ]
        assert [left.engine_id for left in await events(parts, Topic.FLEET)] == ["hung"]
        assert parts.registry.get_sample_value("evener_policy_updates_total", {"result": "evicted"}) == 1
        held.set()


async def test_an_engine_that_hangs_as_it_joins_leaves(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Other engines of its policy get the version meanwhile."""
    good, hung = await play(Script()), await play(Script())
    held = asyncio.Event()
    async with bridge(tmp_path / "state", load_seconds=HUNG_SECONDS) as (parts, http), passing_through(hung.url, hold=held) as url:
        await publish(http, folders[0], 1)
        await join(parts, url, "a-hung")
        await until_paused(hung.url)  # the bridge is at it already
        await join(parts, good.url, "good")
        await until_state(good.url, ("policy@1", False))
        assert await events(parts, Topic.FLEET) == []
        await until(lambda: events(parts, Topic.FLEET), lambda found: [left.engine_id for left in found] == ["a-hung"])
        held.set()


async def until_paused(url: str) -> None:
    await until(lambda: state(url), lambda told: told[1])


async def until_delivered(parts: Any, count: int) -> list[Any]:
    return await until(lambda: outcomes(parts), lambda found: len(found) >= count)


async def test_a_group_of_the_version_on_its_way_waits_and_is_trained(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Its tokens were sampled before the canary said that they are right."""
    engine, held = await play(Script()), asyncio.Event()
    async with bridge(tmp_path / "state") as (parts, http), passing_through(engine.url, hold=held) as url:
        await join(parts, url)
        publishing = asyncio.ensure_future(publish(http, folders[0], 1))
        await until_paused(engine.url)
        await write(parts, group((1.0, 0.0), version=1))
        async for _ in parts.bus.follow(Topic.SCORED, 0, 0):
            break  # the bridge has been given them too
        await turns()
        assert await outcomes(parts) == []
        held.set()
        assert (await publishing)[0] == 201
        (merged,) = await until_delivered(parts, 1)
        (published,) = [event for event in await events(parts) if isinstance(event, PolicyPublished)]
        assert merged.merged_at >= published.published_at
        assert [member.excluded for member in merged.members] == [None, None]


async def test_a_staged_version_is_waited_for_so_long_as_an_engine_may_take(tmp_path: Path) -> None:
    """Whoever owns it, and however long ago it was staged: another bridge, or this one once it has taken it up again."""

    def staged(version: int) -> PolicyStaged:
        return PolicyStaged(policy="policy", version=version, location="/w", digest="d", staged_at=1.0)

    async with open_parts(tmp_path) as parts:
        policies = Policies(parts.bus, EventLog(parts.bus, parts.blobs))
        patient, impatient = RolloutGate(policies, lambda _: True, 30.0), RolloutGate(policies, lambda _: False, 0.5)
        async with policies.writer("policy") as write:
            await write(staged(1))
            waiting = asyncio.ensure_future(patient.settled("policy"))
            await turns()
            assert not waiting.done()
            await asyncio.wait_for(patient.settled("another"), 60)
            await write(PolicyPublished(policy="policy", version=1, location="/w", digest="d", published_at=1.0))
            await asyncio.wait_for(waiting, 60)
            await write(staged(2))
            began = time.monotonic()
            await asyncio.wait_for(impatient.settled("policy"), 60)
            assert time.monotonic() - began > 0.4
            await asyncio.wait_for(impatient.settled("policy"), 60)


async def test_nothing_is_sampled_between_the_label_and_the_weights(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """However long loading takes: each token of the new version was sampled by the new weights, in their context."""
    server, held = await play(Script(default=Rule(say="word " * 50, wait=(Wait(before=3),)))), asyncio.Event()
    engine, control = VllmEngine(server.url), VllmWeights(server.url)
    request = GenerateRequest(request_id="call", ids=np.asarray(IDS, np.int32), sampling=Sampling(seed=3), max_tokens=200)
    try:
        async with (
            bridge(tmp_path / "state") as (parts, http),
            passing_through(server.url, hold=held) as url,
            aclosing(engine.generate(request)) as chunks,
        ):
            await join(parts, url)
            parts_of_answer = [await anext(chunks)]
            publishing = asyncio.ensure_future(publish(http, folders[0], 1))
            await until(lambda: state(server.url), lambda told: told[0] != "default")
            server.go(times=None)
            await turns()  # it samples nothing
            held.set()
            assert (await publishing)[0] == 201
            parts_of_answer += [part async for part in chunks]
        answer = joined_chunks(parts_of_answer)
        scores = await control.score(np.concatenate([request.ids, answer.ids]))
    finally:
        await engine.aclose()
        await control.aclose()
    differences = np.abs(scores.logprobs[len(IDS) :] - answer.logprobs)
    assert set(answer.versions.tolist()) == {0, 1}
    assert differences[answer.versions == 1].max() < 1e-4 < differences[answer.versions == 0].max()


async def test_two_versions_at_once_come_one_after_the_other(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """An engine is given one at a time, and ends with the newer one."""
    engine, held = await play(Script()), asyncio.Event()
    known = await trained((await play(Script())).url, folders[1])
    async with bridge(tmp_path / "state") as (parts, http), passing_through(engine.url, hold=held) as url:
        await join(parts, url)
        first = asyncio.ensure_future(publish(http, folders[0], 1))
        await until_paused(engine.url)
        second = asyncio.ensure_future(publish(http, folders[1], 2))
        await turns()
        held.set()
        assert [status for status, _ in await asyncio.gather(first, second)] == [201, 201]
        said = [(type(event), event.version) for event in await events(parts)]
        assert said == [(PolicyStaged, 1), (PolicyPublished, 1), (PolicyStaged, 2), (PolicyPublished, 2)]
        assert await state(engine.url) == ("policy@2", False)
        assert await scored(engine.url) == pytest.approx(known)


async def test_an_unknown_policy_is_refused_by_name(tmp_path: Path, folders: list[Path]) -> None:
    """A typing mistake would publish to nobody, for good. One that a gateway serves may be without an engine now: there is a warning."""
    async with bridge(tmp_path / "state") as (parts, http):
        await serve(parts, "policy", "critic")
        status, said = await publish(http, folders[0], 1)
        assert (status, said["engines"], said["warnings"]) == (201, [], ["no engine samples policy now; those that join get it"])
        async with http.post("/policies/polciy/versions", json={"path": str(folders[0]), "version": 1}) as answer:
            said = await answer.json()
        assert (answer.status, said["error"]["field"]) == (404, "policy")
        assert "no gateway and no engine knows the policy 'polciy': there are critic, policy" in said["error"]["message"]
        assert {event.policy for event in await events(parts)} == {"policy"}


async def test_before_a_gateway_has_said_which_policies_there_are_the_trainer_is_told_to_wait(tmp_path: Path, folders: list[Path]) -> None:
    """Evener has just been started for the first time."""
    async with bridge(tmp_path / "state") as (parts, http):
        await serve(parts)
        status, said = await publish(http, folders[0], 1)
    assert status == 503
    assert "no gateway has said yet which policies there are" in said["error"]["message"]


async def test_the_client_finds_the_bridge_that_owns_the_policy(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """The fleet first lists a bridge that does not own it. The error is that of the bridge that does, not the refusal of the other."""
    engine = await play(Script())
    config = Config(state=str(tmp_path))
    async with open_parts(tmp_path, partitions=1) as opened, scheduler(opened.bus, tmp_path, reopening=Backoff(0.01, 0.01)) as client:
        parts = structs.replace(opened, secrets=load_secrets(tmp_path))
        async with (
            open_service(config, parts) as idle,
            open_service(config, parts) as owner,
            serving(idle.routes) as first,
            serving(owner.routes) as second,
        ):
            running = asyncio.ensure_future(owner.run())
            for name, address in (("a", first), ("b", second)):
                sign = heartbeat("trainer_bridge", name, at=time.time(), boot_id=name, address=address)
                await EventLog(parts.bus, parts.blobs).send(Topic.FLEET, name, sign)
            await join(parts, engine.url)
            try:
                answer = await client.publish("policy", 1, str(folders[0]))
                await join(parts, "http://127.0.0.1:9", at=2.0)
                with pytest.raises(Unavailable, match="version 2 of policy: engine e1: "):
                    await client.publish("policy", 2, str(folders[1]))
            finally:
                running.cancel()
                await asyncio.wait({running})
    assert (answer.version, [update.engine_id for update in answer.engines]) == (1, ["e1"])
