"""An Evener whose sandboxes are containers of one daemon, and sessions of scripted policies in it."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from secrets import token_hex
from typing import Final

import msgspec
from msgspec import Struct
from proofs.conformance.cells import ended
from proofs.conformance.sites import Site, site
from scripts.dockerd import IMAGE
from tokenizers import Tokenizer

from evener.cli.harness_check import CHECK_POLICY
from evener.cli.submission import RunRequest, plan, submit
from evener.engines.scripted import Rule, Script, ToolCall
from evener.engines.scripted.script import Step
from evener.proto.ids import session_of
from evener.proto.reasons import TerminationReason
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Sampling
from evener.sandboxes.registry import DOCKER

SECONDS: Final = 300.0
ANSWER: Final = "All is done."


class Ended(Struct, frozen=True, kw_only=True):
    """What became of a session."""

    rewards: dict[str, float]
    calls: int
    rows: int
    end: TerminationReason
    detail: str


def containers(folder: Path, tokenizer: Tokenizer, docker_host: str) -> AbstractAsyncContextManager[Site]:
    """Open an Evener whose backend `docker` is the daemon at this address."""
    sandboxes = msgspec.json.encode({"docker": {"host": docker_host, "image": IMAGE, "build_network": "none"}}).decode()
    return site(folder, tokenizer, ("--sandboxes", sandboxes))


async def solved(at: Site, task: Path, harness: str, calls: Sequence[ToolCall]) -> Ended:
    """Run a task whose policy makes these calls, one after the other, and then answers. Raises TimeoutError."""
    steps = (*(Step(tool_calls=(call,)) for call in calls), Step(say=ANSWER))
    at.engine.play(Script(rules=(Rule(key=r"<\|im_start\|>", steps=steps),)))
    wanted = RunRequest(
        run_id=f"containers-{token_hex(4)}",
        harness=HarnessSpec(name=harness),
        samples=1,
        purpose=Purpose.TRAIN,
        policy=CHECK_POLICY.name,
        sampling=Sampling(max_tokens=1024),
        budgets=Budgets(agent_seconds=SECONDS, attempts=1),
    )
    (planned,) = all_planned = await asyncio.to_thread(plan, task, wanted, DOCKER)
    async with asyncio.timeout(SECONDS):
        await submit(at.client, all_planned)
        await ended(at.client, wanted.run_id)
    session_id = session_of(planned.task_id, 0)
    session, graded = await at.client.session(session_id), await at.client.score(session_id)
    assert session.trajectory is not None
    return Ended(
        rewards=graded.score.rewards if graded.score is not None else {},
        calls=sum(call.failure is None for call in session.calls),
        rows=len(session.trajectory.rows),
        end=session.trajectory.termination_reason,
        detail=session.trajectory.detail,
    )
