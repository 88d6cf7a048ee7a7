"""Runs one cell: a session of the real CLI in a whole Evener, with the scripted engine behind it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
from proofs.conformance.cases import FILES, INSTRUCTION, Case, files_of
from proofs.conformance.facts import Seen, built_of, seen
from proofs.conformance.meddling import all_gone, exit_of, meddle, refusals
from proofs.conformance.setups import SetUp
from proofs.conformance.sites import Site
from proofs.conformance.traffic import beyond_loopback, possible

from evener.audit.engine_ledger import check
from evener.cli.harness_check import CHECK_POLICY
from evener.cli.submission import RunRequest, plan, submit
from evener.client.client import Client
from evener.client.session_views import SessionView
from evener.client.views import TaskView
from evener.proto.codec import encode
from evener.proto.ids import session_of
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling
from evener.proto.trajectories import RowKind


async def run(at: Site, setup: SetUp, case: Case, sandbox: str = "local") -> tuple[Seen, list[str]]:
    """Return what became of a session of this set-up in this case, and what is wrong beside that. Raises TimeoutError, NotCheckedError."""
    if case.watched:
        possible()
    began = len(at.engine.ledger)
    at.engine.play(case.script(setup))
    run_request = _wish(setup, case)
    task_folder = _task(at.folder / run_request.run_id, files_of(case, setup))
    (task,) = planned = await asyncio.to_thread(plan, task_folder, run_request, sandbox)
    try:
        async with asyncio.timeout(case.limit_seconds):
            await submit(at.client, planned)
            wrong = await meddle(at, case, task.task_id)
            view = await ended(at.client, run_request.run_id)
            wrong += await all_gone(task.task_id)
            exited = await exit_of(at, task.task_id)
            session = await at.client.session(session_of(task.task_id, 0))
    except TimeoutError:
        await at.client.cancel(task.task_id)  # the next cell is to find nothing of it
        raise
    if case.told:
        wrong += _not_told(case.told, session)
    if case.watched:
        wrong += await beyond_loopback(at.sandboxes, task.task_id)
    ledger = at.engine.ledger[began:]
    unlike = check([msgspec.msgpack.decode(encode(built_of(session)))], [msgspec.json.encode(entry).decode() for entry in ledger])
    aborted = sum(entry.aborted for entry in ledger)
    return seen(view, session, exited, refused=refusals(at, task.task_id), aborted=aborted, unlike=tuple(unlike)), wrong


def _wish(setup: SetUp, case: Case) -> RunRequest:
    return RunRequest(
        run_id=f"{case.name}-{token_hex(4)}",
        harness=HarnessSpec(name=setup.harness, options=setup.options_in(case.name)),
        samples=1,
        purpose=Purpose.TRAIN,
        policy=CHECK_POLICY.name,
        sampling=Sampling(max_tokens=case.answer_tokens),
        budgets=Budgets(agent_seconds=case.limit_seconds, attempts=1),
        streaming=case.streaming,
    )


def _task(folder: Path, files: Sequence[str]) -> Path:
    """Make the task's directory; return it. Blocks."""
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('[task]\nname = "evener/conformance"\n')
    (folder / "instruction.md").write_text(INSTRUCTION)
    wanted = " && ".join((*(f"[ \"$(cat {path})\" = '{FILES[path]}' ]" for path in files), "true"))
    (folder / "tests" / "test.sh").write_text(f"{wanted} && reward=1\necho ${{reward:-0}} > /logs/verifier/reward.txt\n")
    return folder


async def ended(client: Client, run_id: str) -> TaskView:
    """Return the first task of a run that has ended."""
    return await anext(view async for view in client.watch(run_id) if view.outcome is not None)


def _not_told(text: str, session: SessionView) -> list[str]:
    """Return what is wrong where nobody told the main conversation a text."""
    rows = zip(built_of(session).rows, session.messages, strict=True)
    heard = [message for row, messages in rows if row.kind is RowKind.MAIN for message in messages if message["role"] != "assistant"]
    return [] if any(text in _text(message) for message in heard) else [f"the main conversation never heard: {text}"]


def _text(message: Mapping[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False)
