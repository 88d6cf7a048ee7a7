"""The bridge as a process of its own, killed inside its protocol: the group is delivered once all the same."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from tests.support.builders import group
from tests.support.forks import Forked, start
from tests.support.service_context import OPERATOR, open_parts
from tests.support.waiting import until

from evener.proto.codec import decode
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupMerged
from evener.service.events import EventLog

SECONDS = 60.0
"""Longer than a start and a merge take."""


async def started(state: Path, port: int, faults: str = "") -> Process | Forked:
    """Start a bridge on the folder's bus."""
    flags = {"state": state, "port": port, "partitions": 1, "operator-token": OPERATOR, "log-level": "error"}
    words = ["-m", "evener.trainer_bridge", *(f"--{name}={value}" for name, value in flags.items())]
    with (state / "bridge.log").open("ab") as log:
        return await start(words, log, {**os.environ, "EVENER_FAULTS": faults})


async def until_delivered(port: int, group_id: str) -> None:
    """Ask the bridge for the group until it is there."""
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as http:

        async def is_there() -> bool:
            with suppress(aiohttp.ClientConnectionError):
                async with http.get(f"/groups/{group_id}") as answer:
                    return answer.status == 200
            return False

        await until(is_there)


@pytest.mark.parametrize("fault", ["kill@bridge.in_transaction", "kill@bridge.merged"])
async def test_bridge_killed_around_its_commit_delivers_the_group_once(tmp_path: Path, fault: str, unused_tcp_port: int) -> None:
    """Before the commit nothing has happened; after it nothing is done again."""
    sessions = group((1.0, 0.0, 0.5))
    async with open_parts(tmp_path, partitions=1) as parts:
        events = EventLog(parts.bus, parts.blobs)
        for session in sessions:
            await events.send(Topic.SCORED, "fix-the-bug", session, session_id=session.trajectory.session_id)
    struck = await started(tmp_path, unused_tcp_port, fault)
    async with asyncio.timeout(SECONDS):
        assert await struck.wait() == -signal.SIGKILL
    healthy = await started(tmp_path, unused_tcp_port)
    try:
        await until_delivered(unused_tcp_port, "fix-the-bug")
    finally:
        healthy.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await healthy.wait() == 0
    async with open_parts(tmp_path, partitions=1) as parts:
        (record,) = [record async for record in parts.bus.read(Topic.MERGED, 0)]

    assert record.value is not None
    merged = decode(record.value)
    assert isinstance(merged, GroupMerged)
    assert [member.scored for member in merged.members] == list(sessions)
