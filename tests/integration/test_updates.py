"""New weights in running engines: published when they are proven, rolled back when not, the same after any crash of the bridge."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from tests.support.builders import T0
from tests.support.engines import Play
from tests.support.service_context import open_parts
from tests.support.updates import (
    IDS,
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
from tests.support.waiting import eventually
from tests.support.weights_folders import save_weights

from evener.engines.answers import join as joined_chunks
from evener.engines.port import GenerateRequest
from evener.engines.scripted import Rule, Script, Wait
from evener.engines.vllm import VllmEngine
from evener.proto.fleet import PolicyPublished, PolicyRetired, PolicyStaged
from evener.proto.spec import Sampling
from evener.proto.topics import Topic
from evener.service.events import EventLog
from evener.trainer_bridge.weights import read_weights


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Weights of versions 1, 2 and 3."""
    return [save_weights(tmp_path / f"step-{number}", number) for number in (1, 2, 3)]


async def test_published_weights_are_in_every_engine_and_proven(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """The answer tells of each engine how far its logprobs moved and how near the trainer's they are."""
    engines = [await play(Script()) for _ in range(2)]
    known = await trained((await play(Script())).url, folders[0])
    async with bridge(tmp_path / "state") as (parts, http):
        for number, engine in enumerate(engines):
            await join(parts, engine.url, f"e{number}")
        status, said = await publish(http, folders[0], 1, canary=canary(known))

        assert (status, said["new"], said["warnings"]) == (201, True, [])
        assert [(update["engine_id"], update["gap"] < 1e-6, update["change"] > 0.1) for update in said["engines"]] == [
            ("e0", True, True),
            ("e1", True, True),
        ]
        for engine in engines:
            assert await state(engine.url) == ("policy@1", False)
            assert await scored(engine.url) == pytest.approx(known)
        assert [type(event) for event in await events(parts)] == [PolicyStaged, PolicyPublished]
        assert parts.registry.get_sample_value("evener_policy_updates_total", {"result": "published"}) == 1
        assert parts.registry.get_sample_value("evener_policy_update_seconds_count") == 2


async def test_a_call_under_way_runs_on_across_the_update(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Its later tokens carry the new version and are of the new weights."""
    server = await play(Script(default=Rule(say="word " * 50, wait=(Wait(before=3),))))
    engine = VllmEngine(server.url)
    request = GenerateRequest(request_id="call", ids=np.asarray(IDS, np.int32), sampling=Sampling(seed=3), max_tokens=400)
    try:
        async with bridge(tmp_path / "state") as (parts, http), aclosing(engine.generate(request)) as chunks:
            await join(parts, server.url)
            parts_of_answer = [await anext(chunks)]
            status, _ = await publish(http, folders[0], 1)
            server.go(times=None)
            parts_of_answer += [part async for part in chunks]
        answer = joined_chunks(parts_of_answer)
    finally:
        await engine.aclose()

    assert status == 201
    assert sorted(answer.versions.tolist()) == answer.versions.tolist()
    assert set(answer.versions.tolist()) == {0, 1}


async def test_versions_only_rise_and_each_names_one_set_of_weights(tmp_path: Path, folders: list[Path]) -> None:
    """The same again is the same, also without engines; whatever else has a number that was taken is refused."""
    copied = save_weights(tmp_path / "copy", 2)
    async with bridge(tmp_path / "state") as (parts, http):
        assert (await publish(http, folders[1], 2))[0] == 201
        assert (await publish(http, folders[1], 2))[0] == 200
        assert (await publish(http, copied, 2))[0] == 200
        for path, version, says in (
            (folders[2], 2, "with other weights"),
            (folders[0], 1, "not above 2"),
        ):
            status, said = await publish(http, path, version)
            assert (status, said["error"]["field"]) == (409, "version")
            assert says in said["error"]["message"]
        assert (await publish(http, folders[1], 3))[0] == 422
        assert [(await publish(http, folders[0], version))[0] for version in (0, -1)] == [400, 400]
        assert [event.version for event in await events(parts) if isinstance(event, PolicyPublished)] == [2]


async def test_a_version_that_reached_no_engine_is_not_published_after_a_higher_one(tmp_path: Path, folders: list[Path]) -> None:
    """A trainer that was stopped in its publishing asks again, long after another one went on: the older weights stay out."""
    digest = read_weights(folders[0]).digest
    staged = PolicyStaged(policy="policy", version=1, location=str(folders[0]), digest=digest, staged_at=T0)
    published = PolicyPublished(policy="policy", version=2, location=str(folders[1]), digest="other", published_at=T0)
    async with open_parts(tmp_path / "state", partitions=1) as parts:
        for event in (staged, published):
            await EventLog(parts.bus, parts.blobs).send(Topic.POLICIES, "policy", event)
    async with bridge(tmp_path / "state") as (_, http):
        status, said = await publish(http, folders[0], 1)

    assert (status, said["error"]["field"]) == (409, "version")
    assert "not above 2" in said["error"]["message"]


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "has no *.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "No such file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "is not a safetensors file"),
        (cut_off, "it is incomplete"),
        (lambda folder: save_weights(folder, 2, width=5), "changes the shape of embed, head"),
    ],
    ids=["no weights", "no config", "rubbish", "cut off", "another model"],
)
async def test_a_folder_that_cannot_be_loaded_never_reaches_an_engine(
    tmp_path: Path, play: Play, folders: list[Path], spoil: Any, says: str
) -> None:
    """An engine may die of one, and its open calls with it."""
    engine = await play(Script())
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, engine.url)
        await publish(http, folders[0], 1)
        spoil(folders[1])
        status, said = await publish(http, folders[1], 2)

        assert (status, said["error"]["field"]) == (422, "path")
        assert says in said["error"]["message"]
        assert await state(engine.url) == ("policy@1", False)


async def test_an_engine_that_cannot_load_weights_refuses_the_version(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """By kind, or because its control endpoints are shut."""
    server = await play(Script())

    def shut(path: str, _: Any, __: Any) -> Any:
        return {"detail": "Not Found"} if path == "/weight_info" else None

    async with bridge(tmp_path / "state") as (parts, http), passing_through(server.url, shut) as url:
        await join(parts, url, kind="embedded")
        status, said = await publish(http, folders[0], 1)
        assert (status, said["error"]["message"].partition(".")[0]) == (
            409,
            "engine e1 of kind embedded keeps the weights that it was started with",
        )
        assert await events(parts) == []


async def test_engines_that_do_not_answer_get_the_version_when_they_come_back(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """One that is away does not stop the others; if all are away, nothing is published."""
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, "http://127.0.0.1:9", "away")
        status, said = await publish(http, folders[0], 1)
        assert status == 503
        assert "engine away" in said["error"]["message"]
        assert await events(parts) == []

        there = await play(Script())
        await join(parts, there.url, "there")
        status, said = await publish(http, folders[0], 1)
        assert (status, [update["engine_id"] for update in said["engines"]]) == (201, ["there"])
        assert said["warnings"][0].startswith("engine away has not got it yet")

        back = await play(Script())
        await join(parts, back.url, "away")
        await until_state(back.url, ("policy@1", False))
        assert await scored(back.url) == await scored(there.url)


async def test_engines_whose_policy_has_no_versions_here_are_left_alone(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Somebody's own trainer may update them, by other ways."""
    server, updated = await play(Script()), await play(Script())
    server.publish("step-9")
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, server.url, policy="others")
        await publish(http, folders[0], 1)
        await join(parts, updated.url, "e2")
        await until_state(updated.url, ("policy@1", False))  # engines are looked at together
        assert await state(server.url) == ("step-9", False)


async def test_a_link_is_published_as_the_folder_that_it_leads_to(tmp_path: Path, folders: list[Path]) -> None:
    """`latest` is another folder tomorrow."""
    (tmp_path / "latest").symlink_to(folders[0])
    async with bridge(tmp_path / "state") as (_, http):
        assert (await publish(http, tmp_path / "latest", 1))[1]["location"] == str(folders[0].resolve())


async def test_stale_weights_are_found_and_rolled_back(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """An engine that says that it loaded, and did not."""
    server = await play(Script())
    before = await scored(server.url)
    async with bridge(tmp_path / "state") as (parts, http):
        await join(parts, server.url)
        await publish(http, folders[0], 1)
        good = await scored(server.url)
        server.play(Script(reload="ignore"))
        status, said = await publish(http, folders[1], 2)

        assert status == 422
        assert "engine e1 has stale weights: expected other logprobs than before" in said["error"]["message"]
        assert await state(server.url) == ("policy@1", False)
        assert await scored(server.url) == good != before
        retired = (await events(parts))[-1]
        assert isinstance(retired, PolicyRetired)
        assert "stale weights" in retired.reason
        assert (await publish(http, folders[1], 2))[0] == 409


async def test_a_wrong_version_label_is_found_and_rolled_back(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Seen in what answers report, not in what the engine says of itself."""
    server = await play(Script())

    def old(path: str, _: Any, answer: Any) -> Any:
        if answer is not None and path == "/inference/v1/generate" and "choices" in answer:
            for span in answer["choices"][0]["weight_versions"]:
                span["version"] = "policy@1"
        return answer

    async with bridge(tmp_path / "state") as (parts, http), passing_through(server.url, old) as url:
        await join(parts, url)
        assert (await publish(http, folders[0], 1))[0] == 201
        status, said = await publish(http, folders[1], 2)

    assert status == 422
    assert "engine e1 has a wrong version label: expected 2, and saw 1 in its answers" in said["error"]["message"]
    assert await state(server.url) == ("policy@1", False)


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (lambda logprobs: logprobs[1:] + logprobs[:1], "off by one, the trainer's logprobs are those of the next id"),
        (lambda logprobs: logprobs[-1:] + logprobs[:-1], "off by one, the trainer's logprobs are those of the previous id"),
        (lambda logprobs: [logprob / 2 - 1.5 for logprob in logprobs], "the trainer seems to score at a temperature of about 2.0"),
        (lambda logprobs: [*logprobs[:4], logprobs[4] - 0.002, *logprobs[5:]], "token 5 (id 302): expected the trainer's logprob"),
    ],
    ids=["off by one", "off by one the other way", "temperature", "one token"],
)
async def test_a_trainer_that_scores_otherwise_is_told_how(
    tmp_path: Path, play: Play, folders: list[Path], planted: Any, says: str
) -> None:
    """All engines have the version before again."""
    engines = [await play(Script()) for _ in range(2)]
    known = await trained((await play(Script())).url, folders[1])
    async with bridge(tmp_path / "state") as (parts, http):
        for number, engine in enumerate(engines):
            await join(parts, engine.url, f"e{number}")
        await publish(http, folders[0], 1)
        good = await scored(engines[0].url)
        status, said = await publish(http, folders[1], 2, canary=canary(planted(known)))

        assert status == 422
        assert says in said["error"]["message"]
        for engine in engines:
            assert await state(engine.url) == ("policy@1", False)
            assert await scored(engine.url) == good
        assert (await publish(http, folders[1], 3, canary=canary(known)))[0] == 201


async def test_an_engine_that_cannot_be_brought_back_leaves(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """Nobody knows its weights: no call may go there."""
    server = await play(Script())
    broken = False

    def breaks(path: str, body: Any, answer: Any) -> Any:
        nonlocal broken
        if answer is None and path == "/collective_rpc" and "step-2" in body["kwargs"]["weights_path"]:
            broken = True
        if answer is None and broken and path == "/collective_rpc" and "step-1" in body["kwargs"]["weights_path"]:
            return {"results": [None]}
        if answer is not None and broken and path == "/inference/v1/generate":
            answer["prompt_logprobs"][1] = {str(IDS[1]): {"logprob": None, "rank": 1}}
        return answer

    async with bridge(tmp_path / "state") as (parts, http), passing_through(server.url, breaks) as url:
        await join(parts, url)
        await publish(http, folders[0], 1, canary={"prompts": [{"ids": list(IDS)}]})
        status, said = await publish(http, folders[1], 2, canary={"prompts": [{"ids": list(IDS)}]})
        assert status == 422
        assert "expected a logprob, and saw nan" in said["error"]["message"]
        assert [left.engine_id for left in await events(parts, Topic.FLEET)] == ["e1"]


async def test_equal_weights_under_a_new_version_need_not_change_anything(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """A step that moved nothing is no fault."""
    server = await play(Script(reload="ignore"))
    again = save_weights(tmp_path / "again", 1)
    async with bridge(tmp_path / "state") as (parts, http):
        await publish(http, folders[0], 1)
        await join(parts, server.url)
        await until_state(server.url, ("policy@1", False))
        assert (await publish(http, again, 2))[0] == 201


async def test_a_folder_that_was_written_over_is_not_loaded_under_its_old_number(tmp_path: Path, play: Play, folders: list[Path]) -> None:
    """A later engine would sample other weights than its tokens say."""
    with capture_logs() as logs:
        async with bridge(tmp_path / "state") as (parts, http):
            await publish(http, folders[0], 1)
            save_weights(folders[0], 99)
            late = await play(Script())
            await join(parts, late.url)
            await eventually(lambda: any(entry["event"] == "engine_not_updated" for entry in logs))
            assert (await state(late.url))[0] == "default"
