"""`evener runs delete` at a running Evener: what a run has left is gone, and another run is as it was."""

import asyncio
import json
from pathlib import Path
from typing import Final

from tests.support.audited import breaches
from tests.support.commands import asked
from tests.support.engines import smollm
from tests.support.together import submit, together
from tests.support.waiting import until

from evener.blobs.open import open_blobs
from evener.client.client import Client
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.spec import GraderSpec, HarnessSpec, Sampling
from evener.proto.state import Stage
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.proto.trajectories import GroupMerged
from evener.service.state_folder import TOKEN_FILE

SAMPLES: Final = 2
SECONDS: Final = 600.0
"""What the test waits for anything. A sweep that found a blob that was still read begins again after a minute."""


async def merged(client: Client, run_id: str) -> None:
    """Run a task to its end."""
    options = TaskOptions(
        run_id=run_id,
        samples=SAMPLES,
        harness=HarnessSpec(name="script"),
        grader=GraderSpec(name="answer", options={"expected": "7"}),
        sampling=Sampling(max_tokens=64),
    )
    await submit(client, "small-sum", options, run_id)
    detail = await until(lambda: client.task(run_id), lambda found: found.task.stages == {Stage.SEALED: SAMPLES} and found.task.outcome)
    assert detail.task.outcome is TaskOutcome.MERGED


def stored(folder: Path) -> int:
    """Return the number of blobs."""
    return sum(path.is_file() for path in folder.rglob("*"))


async def test_deleted_run_leaves_nothing_in_the_blob_store_and_another_run_is_whole(tmp_path: Path) -> None:
    """Each alone has the stored records of its sessions, and what the bridge kept while its group was open, which may be nothing.

    At last only the probe of the process is there.
    """
    folder = tmp_path / "blobs"
    async with (
        scripted_engine(Script(default=Rule(say="It is 7.")), smollm()) as engine,
        together(tmp_path, engine, blob_rest_seconds=0.0) as context,
        Client(context.address, token := (tmp_path / TOKEN_FILE).read_text().strip()) as client,
    ):
        probes = stored(folder)
        for run_id in ("one", "two"):
            await merged(client, run_id)
        both = stored(folder)
        assert await asked(context.address, token, "runs", "delete", "one") == (0, '{"run_id":"one","tasks":1}\n', "")
        await until(lambda: asyncio.to_thread(stored, folder), lambda count: count <= both - SAMPLES, seconds=SECONDS)
        code, _, errors = await asked(context.address, token, "runs", "delete", "one")
        assert (code, errors.startswith("evener: there is no run 'one'")) == (1, True)
        code, out, _ = await asked(context.address, token, "runs")
        assert [json.loads(line)["run"] for line in out.splitlines()] == ["two"]

        (group,) = [group async for group in client.groups("two")]
        assert isinstance(group, GroupMerged)
        assert all(member.scored is not None and member.scored.trajectory.rows for member in group.members)
        assert await breaches(context.bus, open_blobs(str(folder))) == []

        await client.delete_run("two")
        await until(lambda: asyncio.to_thread(stored, folder), lambda count: count == probes, seconds=SECONDS)
