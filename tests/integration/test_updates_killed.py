"""The bridge as a process of its own, killed in the middle of an update: taken up again or rolled back, never half labelled."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.integration.test_bridge import write
from tests.support.builders import group
from tests.support.engines import Play
from tests.support.forks import Forked, start
from tests.support.service_context import OPERATOR, open_parts
from tests.support.updates import bridge, canary, events, join, publish, scored, state, trained, until_state
from tests.support.waiting import until
from tests.support.weights_folders import save_weights

from evener.engines.scripted import Script
from evener.engines.vllm_http import version_number
from evener.proto.fleet import PolicyPublished, PolicyRetired

SECONDS = 60.0
"""Longer than a start and an update take."""
SELDOM = pytest.mark.slow
STEPS = (
    pytest.param("bridge.policy_staged", marks=SELDOM),
    pytest.param("bridge.engine_paused", marks=SELDOM),
    pytest.param("bridge.engine_relabelled", marks=SELDOM),
    "bridge.engine_loaded",
    pytest.param("bridge.engine_resumed", marks=SELDOM),
    pytest.param("bridge.engine_proven", marks=SELDOM),
    "bridge.policy_loaded",
    pytest.param("bridge.policy_published", marks=SELDOM),
)
STEPS_BACK = (
    pytest.param("bridge.engine_paused#2", marks=SELDOM),
    "bridge.engine_loaded#2",
    pytest.param("bridge.policy_loaded", marks=SELDOM),
    pytest.param("bridge.policy_retired", marks=SELDOM),
)


@asynccontextmanager
async def bridge_process(folder: Path, port: int, faults: str = "") -> AsyncIterator[tuple[Process | Forked, aiohttp.ClientSession]]:
    """Run a bridge; yield it and an operator's client."""
    flags = {"state": folder, "port": port, "partitions": 1, "operator-token": OPERATOR, "log-level": "error"}
    words = ["-m", "evener.trainer_bridge", *(f"--{name}={value}" for name, value in flags.items())]
    with (folder / "bridge.log").open("ab") as log:
        process = await start(words, log, {**os.environ, "EVENER_FAULTS": faults})
    headers = {"authorization": f"Bearer {OPERATOR}"}
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as http:
            await until_open(http, process)
            yield process, http
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            await process.wait()


async def until_open(http: aiohttp.ClientSession, process: Process | Forked) -> None:
    async def is_open() -> bool:
        assert process.returncode is None
        with suppress(aiohttp.ClientConnectionError, TimeoutError):
            async with http.get("/policies", timeout=aiohttp.ClientTimeout(SECONDS / 4)) as answer:
                return answer.status == 200
        return False

    await until(is_open)


async def killed(folder: Path, port: int, fault: str, path: Path, more: dict[str, Any]) -> None:
    """Publish version 2 with a bridge that dies at a point."""
    async with bridge_process(folder, port, f"kill@{fault}") as (process, http):
        with suppress(aiohttp.ClientError):
            await publish(http, path, 2, **more)
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == -signal.SIGKILL


async def prepared(folder: Path, url: str, path: Path) -> None:
    """Publish version 1 to an engine, and stop the bridge."""
    async with bridge(folder) as (parts, http):
        await join(parts, url)
        assert (await publish(http, path, 1))[0] == 201


@pytest.mark.parametrize("fault", STEPS)
async def test_a_bridge_killed_in_mid_update_is_taken_up_again(tmp_path: Path, play: Play, unused_tcp_port: int, fault: str) -> None:
    """Until then the engine is paused, or samples what its label says."""
    folders = {number: save_weights(tmp_path / f"step-{number}", number) for number in (1, 2)}
    other, engine = (await play(Script())).url, (await play(Script())).url
    known = {number: await trained(other, folder) for number, folder in folders.items()}
    await prepared(tmp_path / "state", engine, folders[1])

    await killed(tmp_path / "state", unused_tcp_port, fault, folders[2], {"canary": canary(known[2])})

    label, paused = await state(engine)
    assert paused or await scored(engine) == pytest.approx(known[version_number(label)])
    async with bridge_process(tmp_path / "state", unused_tcp_port) as (_, http):
        await until_state(engine, ("policy@2", False))
        assert (await publish(http, folders[2], 2, canary=canary(known[2])))[0] in {200, 201}  # 201: this took it up
        await until_state(engine, ("policy@2", False))
    assert await scored(engine) == pytest.approx(known[2])
    async with open_parts(tmp_path / "state", partitions=1) as parts:
        published = [event.version for event in await events(parts) if isinstance(event, PolicyPublished)]
    assert published == [1, 2]


async def test_a_group_of_a_version_that_is_taken_up_again_waits_for_it_and_is_trained(
    tmp_path: Path, play: Play, unused_tcp_port: int
) -> None:
    """It was sampled by the version when the bridge died, and graded before the next bridge had looked at the engines."""
    folders = [save_weights(tmp_path / f"step-{number}", number) for number in (1, 2)]
    other, engine = (await play(Script())).url, (await play(Script())).url
    known = await trained(other, folders[1])
    await prepared(tmp_path / "state", engine, folders[0])
    await killed(tmp_path / "state", unused_tcp_port, "bridge.policy_loaded", folders[1], {"canary": canary(known)})
    async with open_parts(tmp_path / "state", partitions=1) as parts:
        await write(parts, group((1.0, 0.0), version=2))

    async with bridge_process(tmp_path / "state", unused_tcp_port) as (_, http):
        merged = await ended(http, "fix-the-bug")
    assert [member.get("excluded") for member in merged["members"]] == [None, None]


async def ended(http: aiohttp.ClientSession, group_id: str) -> Any:
    """Wait until a group has ended; return it."""

    async def asked() -> Any:
        async with http.get(f"/groups/{group_id}") as answer:
            return await answer.json() if answer.status == 200 else None

    return await until(asked)


@pytest.mark.parametrize("fault", STEPS_BACK)
async def test_a_bridge_killed_in_mid_roll_back_is_rolled_back(tmp_path: Path, play: Play, unused_tcp_port: int, fault: str) -> None:
    """The version is never published, and its number stays taken."""
    folders = [save_weights(tmp_path / f"step-{number}", number) for number in (1, 2)]
    other, engine = (await play(Script())).url, (await play(Script())).url
    wrong = canary([logprob - 0.5 for logprob in await trained(other, folders[1])])
    first = await trained(other, folders[0])
    await prepared(tmp_path / "state", engine, folders[0])

    await killed(tmp_path / "state", unused_tcp_port, fault, folders[1], {"canary": wrong})

    async with bridge_process(tmp_path / "state", unused_tcp_port) as (_, http):
        await until_state(engine, ("policy@1", False))
        await until(lambda: publish(http, folders[1], 2, canary=wrong), lambda said: said[0] == 409)
    assert await state(engine) == ("policy@1", False)
    assert await scored(engine) == pytest.approx(first)
    async with open_parts(tmp_path / "state", partitions=1) as parts:
        said = await events(parts)
    assert isinstance(said[-1], PolicyRetired)
    assert [event.version for event in said if isinstance(event, PolicyPublished)] == [1]
