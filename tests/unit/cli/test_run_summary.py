"""What `evener run` says at its end, and its exit code."""

import io
import json
from typing import Any

import pytest
from msgspec import structs
from rich.text import Text

from evener.cli.output import Harmless, console
from evener.cli.progress import SHOWN_TASKS, overview, tell_troubles
from evener.cli.run_summary import exit_code, lines, summarize_run, summarize_runs, tell_runs, tell_summary
from evener.cli.run_warnings import too_long, untrainable, without_tools
from evener.cli.submission import RunRequest
from evener.client.views import ServedEngine, TaskView
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.spec import HarnessSpec, Purpose, Sampling
from evener.proto.state import Stage
from evener.proto.tasks import TaskOutcome
from evener.proto.trajectories import Accounting

TRAINED = Accounting(sampled=10, delivered=8, excluded={ExclusionReason.ORPHAN: 2})
CONSTRAINED = Accounting(sampled=10, excluded={ExclusionReason.CONSTRAINED: 10})


def view(name: str = "t", books: Accounting | None = TRAINED, **given: Any) -> TaskView:
    """Return a task that was merged, where nothing else is said."""
    fields: dict[str, Any] = {
        "cursor": 1,
        "task_id": f"run.{name}",
        "run_id": "run",
        "name": name,
        "harness": "script",
        "purpose": Purpose.TRAIN,
        "samples": 2,
        "stages": {Stage.SEALED: 2},
        "ends": {TerminationReason.FINISHED: 2},
        "attempts": 2,
        "rewards": (1.0, 0.0),
        "accounting": books,
        "outcome": TaskOutcome.MERGED,
        "submitted_at": 1.0,
    }
    return TaskView(**fields | given)


def engine(*, any_temperature: bool = False, filters: bool = False, renders_tools: bool = True) -> ServedEngine:
    return ServedEngine(
        engine_id="e",
        policy="policy",
        context_length=4096,
        any_temperature=any_temperature,
        filters=filters,
        renders_tools=renders_tools,
    )


@pytest.mark.parametrize(
    ("views", "code"),
    [
        ([view()], 0),
        ([view(), view(books=CONSTRAINED)], 3),
        ([view(books=Accounting())], 3),
        ([view(books=CONSTRAINED), view(outcome=TaskOutcome.FAILED)], 1),
        ([view(outcome=TaskOutcome.CANCELLED, books=None)], 1),
        ([view(outcome=TaskOutcome.KEPT, purpose=Purpose.EVAL, books=CONSTRAINED)], 0),
        ([view(books=None)], 0),
        ([view(), view(outcome=TaskOutcome.DROPPED)], 0),
        ([view(outcome=TaskOutcome.DROPPED)], 3),
        ([view(outcome=TaskOutcome.DROPPED), view(outcome=TaskOutcome.FAILED)], 1),
    ],
)
def test_exit_code_tells_failed_groups_and_groups_with_nothing_to_train(views: list[TaskView], code: int) -> None:
    """A run that is merged and delivers nothing is no success; evaluation may sample as it likes."""
    assert exit_code(views) == code


def test_groups_with_nothing_to_train_are_reported_once_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    tell_troubles([view("a", CONSTRAINED), view("b", CONSTRAINED), view("c"), view("d", Accounting())])

    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert told[0] == (
        "evener: task run.a and 1 more merged, but nothing of it can be trained: all sampled tokens are excluded: constrained "
        "(the reported logprobs are not those of the sampled distribution; sample at temperature 1 without filters)"
    )
    assert told[1] == "evener: task run.d merged, but nothing of it can be trained: no token was sampled"


def test_context_that_was_too_short_for_all_sessions_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    tell_troubles(
        [
            view("a", ends={TerminationReason.CONTEXT_OVERFLOW: 2}),
            view("b", ends={TerminationReason.CONTEXT_OVERFLOW: 1, TerminationReason.FINISHED: 1}),
        ]
    )

    assert capsys.readouterr().err == "evener: task run.a merged, but the context was too short in all its sessions: evener show run.a.0\n"


def test_last_line_has_the_figures_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """For programs that read it."""
    tell_summary(summarize_run("run", [view("a"), view("b", CONSTRAINED, rewards=(1.0, None)), view("c", None, outcome=None, rewards=())]))

    assert json.loads(capsys.readouterr().out) == {
        "run": "run",
        "tasks": 3,
        "outcomes": {"merged": 2, "open": 1},
        "sessions": 6,
        "ends": {"finished": 6},
        "rewards": {"mean": 2 / 3, "deviation": 0.5},
        "sampled": 20,
        "delivered": 8,
        "excluded": {"orphan": 2, "constrained": 10},
        "calls_without_tools": 0,
    }


def test_runs_are_listed_in_the_order_of_their_submission(capsys: pytest.CaptureFixture[str]) -> None:
    tell_runs(summarize_runs([view("b", run_id="second", submitted_at=2.0), view("a"), view("c", submitted_at=3.0)]))
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [(one["run"], one["tasks"], one["delivered"]) for one in told] == [("run", 2, 16), ("second", 1, 8)]


def test_summary_without_a_reward_is_readable() -> None:
    out = console()
    with out.capture() as shown:
        out.print(lines(summarize_run("run", [view(rewards=(None, None))])))

    assert "rewards   none" in shown.get()


def test_many_tasks_are_a_screenful_with_their_counts() -> None:
    """Sixty tasks are not sixty lines."""
    ended = [view(f"e{number}", ended_at=float(number)) for number in range(40)]
    going = [view(f"g{number}", None, outcome=None, stages={Stage.RUNNING: 2}, ends={}, rewards=()) for number in range(4)]
    waiting = [view(f"w{number}", None, outcome=None, stages={Stage.QUEUED: 2}, ends={}, rewards=()) for number in range(16)]
    out = console()
    with out.capture() as shown:
        out.print(overview([*ended, *going, *waiting], 60))
    said = shown.get()

    assert len(said.splitlines()) == SHOWN_TASKS + 3
    assert all(f"g{number} " in said for number in range(4))
    assert "and 44 more tasks" in said
    assert "60 tasks: 40 merged; 80 of 120 sessions, mean reward 0.5" in said


def test_what_a_grader_printed_is_shown_as_it_is_and_in_one_line() -> None:
    """It was taken for markup, and ended the command; ten lines of it pushed the other tasks off the screen."""
    reason = "2 ungraded (its last lines: bad [/x] [bold] :smile:\n" + "line\n" * 50 + ")"
    out = console(width=200)
    with out.capture() as shown:
        out.print(overview([view("[/name]", outcome=TaskOutcome.FAILED, reason=reason)], 1))
    said = shown.get()

    assert "[/name]" in said
    assert "failed 2 ungraded (its last lines: bad [/x] [bold] :smile: line" in said
    assert len(said.splitlines()) == 3


def test_control_characters_of_an_agent_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A grader's output cleared the screen. Colours of our own stay."""
    evil = "a\x1b[2Jb\x9b2Jc\x07"
    tell_troubles([view("a", outcome=TaskOutcome.FAILED, reason=evil)])
    out = Harmless(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    with out.capture() as shown:
        out.print(Text(evil, "red"))

    assert capsys.readouterr().err == "evener: task run.a failed: a\ufffd[2Jb\ufffd2Jc\ufffd\n"
    assert shown.get() == "\x1b[31ma\ufffd[2Jb\ufffd2Jc\x1b[0m\n"


@pytest.mark.parametrize(
    ("sampling", "engines", "told"),
    [
        (Sampling(), [engine()], None),
        (Sampling(temperature=0.7), [], None),
        (Sampling(temperature=0.7), [engine(any_temperature=True)], None),
        (Sampling(temperature=0.7), [engine(), engine(any_temperature=True)], None),
        (Sampling(temperature=0.7), [engine()], "with temperature 0.7 the logprobs that engine e reports are not those of what it samples"),
        (Sampling(top_p=0.9, top_k=4), [engine(any_temperature=True)], "with top-p 0.9, top-k 4 the logprobs"),
        (Sampling(temperature=0.0), [engine(any_temperature=True)], "They are at any --sampling.temperature above 0, without top-p"),
    ],
)
def test_settings_that_no_engine_is_exact_for_are_reported_beforehand(
    sampling: Sampling, engines: list[ServedEngine], told: str | None
) -> None:
    warning = untrainable(sampling, engines)

    assert (warning is None) if told is None else (warning is not None and told in warning)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (HarnessSpec(name="pi"), True),
        (HarnessSpec(name="pi", options={"tools": "none"}), False),
        (HarnessSpec(name="command"), True),
        (HarnessSpec(name="script"), True),
        (HarnessSpec(name="script", options={"tools": "0"}), False),
    ],
)
def test_tools_that_a_template_does_not_render_are_reported_beforehand(spec: HarnessSpec, told: bool) -> None:  # noqa: FBT001
    """A policy that never sees its tools earns no reward by calling them. Those that need no trust are tools, too."""
    run_request = RunRequest(run_id="run", harness=spec, samples=2, purpose=Purpose.TRAIN)

    assert without_tools(run_request, [engine()]) is None
    assert without_tools(run_request, []) is None
    warning = without_tools(run_request, [engine(renders_tools=False)])
    assert (warning is not None and "chatml_tools" in warning) is told


@pytest.mark.parametrize(
    ("spec", "context", "told"),
    [
        (HarnessSpec(name="codex"), 4096, "takes about 9750 tokens, and no engine of policy policy holds more than 4096"),
        (HarnessSpec(name="codex", options={"tools": "lean"}), 8192, None),
        (HarnessSpec(name="claude_code"), 16384, "takes about 18250 tokens"),
        (HarnessSpec(name="claude_code", options={"settings": "bare"}), 4096, None),
        (HarnessSpec(name="command"), 64, None),
    ],
)
def test_first_prompt_that_no_engine_holds_is_reported_beforehand(spec: HarnessSpec, context: int, told: str | None) -> None:
    """Each of its sessions would end by `context_overflow`."""
    run_request = RunRequest(run_id="run", harness=spec, samples=2, purpose=Purpose.TRAIN)
    short = structs.replace(engine(), context_length=context)
    warning = too_long(run_request, [short])

    assert (warning is None) if told is None else (warning is not None and told in warning)
    assert too_long(run_request, []) is None
    assert too_long(run_request, [short, structs.replace(short, context_length=131072)]) is None


def test_calls_whose_tools_were_not_seen_are_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = Accounting(sampled=8, delivered=8, calls_without_tools=3)
    tell_troubles([view("a", hidden), view("b", hidden)])

    assert capsys.readouterr().err.startswith("evener: warning: 6 calls offered tools that the policy never saw")
    assert summarize_run("run", [view("a", hidden), view("b", hidden)]).calls_without_tools == 6
