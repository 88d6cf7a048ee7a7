"""The demo: bundled tasks to a report."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

import msgspec
from rich.text import Text

from evener.cli.exporting import fetch, write_bytes, write_groups
from evener.cli.foreseeing import Foresight
from evener.cli.leaving import leaving
from evener.cli.progress import console, tell, tell_troubles, watch
from evener.cli.reporting import page_of
from evener.cli.run_summary import exit_code
from evener.cli.running import evener
from evener.cli.submitting import Planned, Wish, harness_spec, plan, submit, trusting
from evener.client.client import Client
from evener.formats.summary import Outcome, Summary, summarize
from evener.proto.spec import Budgets, Purpose, Sampling
from evener.service.exits import complain
from evener.tasks.directory import bundled

POLICY = "policy"
SAMPLING = {"script": Sampling(max_tokens=48), "pi": Sampling(max_tokens=128)}
OPTIONS = {"script": {"turns": "Say it again, in one short sentence.", "tools": "0"}}
"""A second user turn shows a context that is extended, not rendered anew. No bundled task needs the tool, and the small model of the demo
answers worse below its schema, which is five times the length of the prompt."""
BUDGETS = Budgets(agent_seconds=300.0, calls=8)


async def demonstrate(harness: str, samples: int, out: Path, *, trust_local: bool, state: Path | None) -> int:
    """Run the bundled tasks and leave the report; return the exit code. Whoever leaves before the end is told what goes on."""
    began = time.monotonic()
    wish = Wish(
        run_id=f"demo-{token_hex(4)}",
        harness=harness_spec(harness, OPTIONS.get(harness, {})),
        samples=samples,
        purpose=Purpose.TRAIN,
        policy=POLICY,
        sampling=SAMPLING.get(harness, SAMPLING["pi"]),
        budgets=BUDGETS,
    )
    planned = await asyncio.to_thread(plan, bundled(), wish)
    with leaving() as asked:
        try:
            return await _run(wish, planned, out, began, trust_local=trust_local, state=state)
        except asyncio.CancelledError:
            if asked.number is None:
                raise
            complain(f"the demo was left without a report; `evener cancel {wish.run_id}` ends what else goes on with the next command")
            return asked.taken_back()


async def _run(wish: Wish, planned: Sequence[Planned], out: Path, began: float, *, trust_local: bool, state: Path | None) -> int:
    async with evener(state, lambda: trusting(wish, trust_local=trust_local), sampling=True) as client:
        foresight = Foresight(client, wish)
        await foresight.look()
        await submit(client, planned)
        views = await watch(client, wish.run_id, {each.task_id for each in planned}, foresight)
        groups = await fetch(client, wish.run_id)
        summary = summarize(groups, submitted=len(planned))
        await _leave(client, out, wish, groups, summary, wall_seconds=time.monotonic() - began)
    _say(out, summary, time.monotonic() - began)
    tell_troubles(views.values())
    return exit_code(views.values())


async def _leave(client: Client, out: Path, wish: Wish, groups: Sequence[Outcome], summary: Summary, *, wall_seconds: float) -> None:
    """Write all files."""
    facts = {"harness": wish.harness.name, "samples": str(wish.samples), "run": wish.run_id, "wall time": f"{wall_seconds:.0f} s"}
    page = await page_of(client, groups, title="Evener demo", facts=facts, submitted=summary.groups.submitted)
    write_bytes(out / "summary.json", msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
    write_bytes(out / "report.html", page)
    await write_groups(out / "groups.jsonl", "jsonl", groups)
    await write_groups(out / "groups.parquet", "parquet", groups)


def _say(out: Path, summary: Summary, seconds: float) -> None:
    """Tell what came out."""
    shown = console()
    if not shown.is_terminal:
        tell(summary)
        return
    groups, tokens = summary.groups, summary.tokens
    session = f"{next(iter(summary.rewards.per_group), 'TASK')}.0"
    shown.print(f"\n{groups.merged} of {groups.submitted} groups merged in {seconds:.0f} s.")
    shown.print(f"{tokens.sampled} tokens sampled, {tokens.delivered} delivered, {sum(tokens.left_out.values())} left out.")
    report = Text(str(out / "report.html"), "bold")
    shown.print(Text.assemble("Open ", report, f", or look at a session: evener show {session} --tokens"))
