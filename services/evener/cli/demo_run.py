"""The run behind `evener demo`: from bundled tasks to a report."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

import msgspec
from rich.text import Text

from evener.cli.connection import connect
from evener.cli.group_files import fetch, write_bytes, write_groups
from evener.cli.interrupts import leaving
from evener.cli.output import console, tell
from evener.cli.progress import tell_troubles, watch
from evener.cli.run_page import write_report
from evener.cli.run_summary import exit_code
from evener.cli.run_warnings import RunWarnings
from evener.cli.sandbox_choice import offered_here, placed, placed_there, sandboxes_of, trusting
from evener.cli.submission import Planned, RunRequest, harness_spec, plan, submit
from evener.formats.summary import Summary, summarize
from evener.proto.spec import Budgets, Purpose, Sampling
from evener.service.exits import complain
from evener.tasks.directory import bundled

DEMO_POLICY = "policy"
SAMPLING = {"script": Sampling(max_tokens=48), "pi": Sampling(max_tokens=128)}
DEMO_OPTIONS = {"script": {"turns": "Say it again, in one short sentence.", "tools": "0"}}
"""A second user turn shows a context that is extended instead of rendered again. No bundled task needs the tool, and the small model of the
demo answers worse when it sees the tool's schema, which is five times as long as the prompt."""
BUDGETS = Budgets(agent_seconds=300.0, calls=8)


async def demonstrate(harness: str, samples: int, out: Path, *, sandbox: str | None = None, trust_local: bool, state: Path | None) -> int:
    """Run the bundled tasks and write the report; return the exit code. A user who interrupts is told what continues."""
    began = time.monotonic()
    run_request = RunRequest(
        run_id=f"demo-{token_hex(4)}",
        harness=harness_spec(harness, DEMO_OPTIONS.get(harness, {})),
        samples=samples,
        purpose=Purpose.TRAIN,
        policy=DEMO_POLICY,
        sampling=SAMPLING.get(harness, SAMPLING["pi"]),
        budgets=BUDGETS,
    )
    planned = await asyncio.to_thread(plan, bundled(), run_request, sandbox)
    with leaving() as asked:
        try:
            return await _run(run_request, planned, out, began, trust_local=trust_local, state=state)
        except asyncio.CancelledError:
            if asked.number is None:
                raise
            complain(
                f"the demo was interrupted and has no report; `evener cancel {run_request.run_id}` ends it, or the next one continues it"
            )
            return asked.taken_back()


async def _run(
    run_request: RunRequest, planned: Sequence[Planned], out: Path, began: float, *, trust_local: bool, state: Path | None
) -> int:
    brought = False

    def up() -> tuple[str, ...]:
        nonlocal brought, planned
        brought, planned = True, placed(planned, offered_here(trust_local=trust_local))
        return trusting(run_request, sandboxes_of(planned), trust_local=trust_local)

    async with connect(state, up, sampling=True) as client:
        planned = planned if brought else await placed_there(planned, client)
        run_warnings = RunWarnings(client, run_request)
        await run_warnings.check_engines()
        await submit(client, planned)
        views = await watch(client, run_request.run_id, {each.task_id for each in planned}, run_warnings)
        groups = await fetch(client, run_request.run_id)
        summary = summarize(groups, submitted=len(planned))
        write_bytes(out / "summary.json", msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
        await write_groups(out / "groups.jsonl", "jsonl", groups)
        await write_groups(out / "groups.parquet", "parquet", groups)
        await write_report(client, run_request.run_id, out / "report.html")
    _say(out, summary, time.monotonic() - began)
    tell_troubles(views.values())
    return exit_code(views.values())


def _say(out: Path, summary: Summary, seconds: float) -> None:
    """Print the results."""
    shown = console()
    if not shown.is_terminal:
        tell(summary)
        return
    groups, tokens = summary.groups, summary.tokens
    session = f"{next(iter(summary.rewards.per_group), 'TASK')}.0"
    shown.print(f"\n{groups.merged} of {groups.submitted} groups merged in {seconds:.0f} s.")
    shown.print(f"{tokens.sampled} tokens sampled, {tokens.delivered} delivered, {sum(tokens.excluded.values())} excluded.")
    report = Text(str(out / "report.html"), "bold")
    shown.print(Text.assemble("Open ", report, f", or look at a session: evener show {session} --tokens"))
