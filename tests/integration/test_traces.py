"""The traces of tasks, through all six services."""

import asyncio
from pathlib import Path

from msgspec.structs import replace
from opentelemetry.trace import StatusCode
from tests.support.engines import smollm
from tests.support.spans import Spans
from tests.support.together import submit, together

from evener.client.client import Client
from evener.client.groups import Groups
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Sampling
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.service.state_folder import TOKEN_FILE

SCRIPT = Script(default=Rule(say="one two three four five six seven eight nine ten"))
OPTIONS = TaskOptions(
    run_id="run", samples=2, harness=HarnessSpec(name="script"), grader=GraderSpec(name="harbor"), sampling=Sampling(max_tokens=64)
)
MERGED = ["            merge", "              deliver"]
SESSION = [
    "  dispatch",
    "    attempt",
    "      prepare",
    "      harness",
    "        call",
    *("          placement", "          wait", "          engine", "          commit"),
    "      collect",
    "      seal",
    "        build",
    "          grade",
    *("            try", "            look"),
]


async def run(folder: Path, script: Script, options: TaskOptions = OPTIONS) -> TaskOutcome:
    """Run the task `ten-words` through a whole Evener, to its end and to a trainer."""
    async with (
        scripted_engine(script, smollm()) as engine,
        together(folder, engine) as context,
        Client(context.address, (folder / TOKEN_FILE).read_text().strip()) as client,
        asyncio.timeout(120),
    ):
        await submit(client, "ten-words", options)
        outcome = await anext(view.outcome async for view in client.watch(options.run_id) if view.outcome is not None)
        if outcome is TaskOutcome.MERGED:
            assert [group.event.task_id async for group in Groups(client, run_id=options.run_id)] == ["t"]
    return outcome


async def test_one_trace_runs_from_the_submission_to_the_delivery(spans: Spans, tmp_path: Path) -> None:
    """Each span is the child of what caused it, across services and the log."""
    outcome = await run(tmp_path, SCRIPT)
    submit = spans.one("submit")
    sessions = [spans.tree(dispatch, 1) for dispatch in spans.children(submit)]
    call = spans.all("call")[0]

    assert outcome is TaskOutcome.MERGED
    assert sorted(sessions, key=len) == [SESSION, [*SESSION, *MERGED]], "the session that is graded last ends its group"
    assert len(spans.all()) == 1 + sum(map(len, sessions)), "every span is below the submission"
    assert {span.attributes["evener.session.id"] for span in spans.all("attempt") if span.attributes} == {"t.0", "t.1"}
    assert {span.status.status_code for span in spans.all()} == {StatusCode.UNSET}
    assert call.attributes is not None
    assert call.attributes["gen_ai.request.model"] == "policy"
    assert call.attributes["gen_ai.usage.output_tokens"] == 11
    assert call.attributes["evener.placement"] == "first"


async def test_failed_call_is_an_error_in_its_trace(spans: Spans, tmp_path: Path) -> None:
    """And so are the attempt and the group that fail for it."""
    outcome = await run(tmp_path, Script(default=Rule(fail=400)), replace(OPTIONS, samples=1, budgets=Budgets(attempts=1)))
    failed = [span for span in spans.all() if span.status.status_code is StatusCode.ERROR]
    call = spans.all("call")[0]

    assert outcome is TaskOutcome.FAILED
    assert {"call", "engine", "attempt", "merge"} <= {span.name for span in failed}
    assert {span.context.trace_id for span in failed} == {spans.one("submit").context.trace_id}
    assert call.attributes is not None
    assert call.attributes["error.type"] == "engine_error"
