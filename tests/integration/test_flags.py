"""Signs of reward hacking, from a stored session to everybody who should see them."""

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from tests.integration.test_evaluator import running, scores, write
from tests.support.agent_runs import Run, stored
from tests.support.builders import built, ended, scored
from tests.support.hacking_runs import CHEATS, HONEST
from tests.support.service_context import open_parts
from tests.unit.cli.test_session_text import printed

from evener.cli.session_grade import SessionGrade, grade_facts
from evener.cli.session_text import heading
from evener.client.groups import group_of
from evener.client.session_views import Score, ScoreView, SessionSource, SessionView
from evener.evaluator.config import Config
from evener.formats import jsonl, parquet
from evener.formats.neutral import neutral_rows
from evener.formats.summary import summarize
from evener.proto.blobs import BlobRef
from evener.proto.codec import decode, encode
from evener.proto.delivered import GroupPosition
from evener.proto.fields import shared_fields
from evener.proto.reasons import TerminationReason
from evener.proto.spec import Consequence, Detector
from evener.proto.trajectories import GroupMerged, TrajectoryScored

CHEAT = "the tests are read"
SOLVED = {"tests/test.sh": "#!/bin/sh\nmkdir -p /logs/verifier\necho 1 > /logs/verifier/reward.txt\n"}


async def score_of(run: Run, folder: Path, hacking: dict[Detector, Consequence]) -> tuple[TrajectoryScored, dict[str, float]]:
    """Return the score that a real evaluator gives a stored run, whose tests pass, and the evaluator's counters."""
    config = Config(state=str(folder), retry_seconds=0.01, commit_seconds=0.05, concurrency=2)
    async with open_parts(folder) as context:
        solved = structs.replace(run, task={**run.task, **SOLVED})
        await write(context, await stored(solved, folder / "task", context.blobs, hacking))
        async with running(context, config):
            (score,) = await scores(context, 1)
        samples = [sample for family in context.registry.collect() for sample in family.samples]
    counted = {"/".join(sample.labels.values()): sample.value for sample in samples if sample.name == "evener_sessions_flagged_total"}
    return score, counted


async def test_flag_is_counted_and_the_reward_stays(tmp_path: Path) -> None:
    score, counted = await score_of(CHEATS[CHEAT], tmp_path, {})
    (flag,) = score.flags

    assert (score.reward, score.unwatched) == (1.0, None)
    assert (flag.detector, flag.consequence, flag.call_id, flag.where) == (Detector.GRADER_PROBED, Consequence.FLAG, "c1", "bash")
    assert flag.excerpt == "cat /tests/test.sh"
    assert counted == {"grader_probed/flag": 1.0}


async def test_task_fails_a_session_that_cheated(tmp_path: Path) -> None:
    """The reward is 0, and what the grader gave is kept beside it."""
    score, counted = await score_of(CHEATS[CHEAT], tmp_path, dict.fromkeys(Detector, Consequence.FAIL))

    assert (score.reward, score.rewards["graded"]) == (0.0, 1.0)
    assert counted == {"grader_probed/fail": 1.0}


async def test_honest_session_is_paid_where_cheats_are_failed(tmp_path: Path) -> None:
    score, counted = await score_of(HONEST["the bug is mended"], tmp_path, dict.fromkeys(Detector, Consequence.FAIL))

    assert (score.reward, score.flags, score.unwatched, counted) == (1.0, (), None, {})


async def test_session_that_no_detector_could_read_is_counted(tmp_path: Path) -> None:
    """Its calls lie in a blob that is gone. Its reward stays, as its task fails nobody for signs."""
    async with open_parts(tmp_path) as context:
        run = await stored(CHEATS[CHEAT], tmp_path / "task", context.blobs)
        run = structs.replace(run, records=BlobRef(digest="0" * 64, size=7))
        await write(context, run)
        async with running(context, Config(state=str(tmp_path), commit_seconds=0.05)):
            (score,) = await scores(context, 1)
        counted = context.registry.get_sample_value("evener_sessions_unwatched_total")

    assert counted == 1.0
    assert score.unwatched is not None


async def test_session_that_nobody_grades_is_not_looked_at(tmp_path: Path) -> None:
    async with open_parts(tmp_path) as context:
        cheat = await stored(CHEATS[CHEAT], tmp_path / "task", context.blobs)
        await write(context, structs.replace(cheat, termination_reason=TerminationReason.CANCELLED, rows=()))
        async with running(context, Config(state=str(tmp_path), commit_seconds=0.05)):
            (score,) = await scores(context, 1)

    assert (score.reward, score.flags) == (None, ())


@pytest.fixture
async def flagged(tmp_path: Path) -> TrajectoryScored:
    return (await score_of(CHEATS[CHEAT], tmp_path, {}))[0]


async def test_flags_reach_trainers_and_exports(flagged: TrajectoryScored) -> None:
    """In the group as it is delivered, in each row, and in the figures of the run."""
    others = tuple(scored(built(index=index)) for index in (1, 2, 3))
    event = ended((flagged, *others), now=0.0)
    assert isinstance(event, GroupMerged)
    read = decode(encode(event))
    assert isinstance(read, GroupMerged)
    group = group_of(read, GroupPosition(partition=0, offset=0, next_offset=1))
    written, lines = io.BytesIO(), io.BytesIO()
    parquet.write([read], written)
    jsonl.write([read], lines)

    assert [session.flags for session in group.sessions] == [flagged.flags, (), (), ()]
    assert [row["flags"] for row in neutral_rows(read)] == [["grader_probed"], [], [], []]
    assert pq.read_table(written).column("flags").to_pylist() == [["grader_probed"], [], [], []]
    assert [json.loads(line)["flags"] for line in lines.getvalue().splitlines()] == [["grader_probed"], [], [], []]
    assert summarize([read]).flags == {"grader_probed": 1}


async def test_show_names_the_call_and_the_text(flagged: TrajectoryScored) -> None:
    trajectory = flagged.trajectory
    view = SessionView(
        session_id=trajectory.session_id, source=SessionSource.LOG, attempts=(), calls=(), trajectory=trajectory, messages=()
    )
    score = ScoreView(session_id=trajectory.session_id, score=Score(**shared_fields(flagged, Score)), use=None)
    shown = printed(heading(view, grade_facts(view, SessionGrade(score=score, outputs=()))))

    assert "grader probed (flag): call c1, bash: cat /tests/test.sh" in shown
