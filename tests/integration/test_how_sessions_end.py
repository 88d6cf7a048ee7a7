"""Each line of the table of ends (docs/rewards.md), from the seal on: what is built, counted, graded, shown and delivered."""

import time
from pathlib import Path

import pytest
from tests.integration.test_reconstructor import reconstruct_until
from tests.support.builders import alone, built, ended, exited, group, scored, sealed, started
from tests.support.service_context import open_parts
from tests.unit.cli.test_session_text import printed

from evener.cli.session_text import heading
from evener.client.groups import group_of
from evener.client.session_views import SessionSource, SessionView
from evener.evaluator.core import not_graded
from evener.proto.codec import decode
from evener.proto.delivered import GroupPosition
from evener.proto.reasons import END_POLICY, ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import Event
from evener.proto.spec import Budgets
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupMerged, TrajectoryBuilt
from evener.service.events import EventLog
from evener.tokens.rows import digest

LIMITED = {
    TerminationReason.AGENT_TIME: (Budgets(agent_seconds=300), "limit: 300 s on the agent's clock"),
    TerminationReason.WALL_TIME: (Budgets(wall_seconds=600), "limit: 600 s since its harness was started"),
    TerminationReason.TOKEN_BUDGET: (Budgets(tokens=4096), "limit: 4096 sampled tokens"),
    TerminationReason.CALL_BUDGET: (Budgets(calls=20), "limit: 20 calls"),
    TerminationReason.TURN_BUDGET: (Budgets(turns=10), "limit: 10 turns"),
    TerminationReason.LOOPING: (Budgets(repeats=3), "limit: 3 times the same call with the same result"),
    TerminationReason.DEADLINE: (Budgets(deadline_seconds=600), "limit: 600 s since its first dispatch"),
    TerminationReason.ATTEMPTS_USED_UP: (Budgets(attempts=3), "limit: 3 attempts"),
}
"""The ends that a budget makes, and how they are told."""


@pytest.mark.parametrize("end", LIMITED)
async def test_budget_that_ended_a_session_is_in_its_trajectory_the_metrics_and_show(tmp_path: Path, end: TerminationReason) -> None:
    budgets, told = LIMITED[end]
    spec = alone("a", budgets=budgets)
    cause = ExitCause(end.value) if end in {TerminationReason.AGENT_TIME, TerminationReason.WALL_TIME} else ExitCause.EXITED
    now = time.time()
    events: tuple[Event, ...] = (started("a", spec, at=now), exited("a", cause=cause), sealed("a", end, at=now, rows_digest=digest(())))
    async with open_parts(tmp_path, partitions=1) as context:
        for event in events:
            await EventLog(context.bus, context.blobs).send(Topic.SESSIONS, "a", event, session_id="a")
        await reconstruct_until(context, "a")
        (trajectory,) = [decode(record.value or b"") async for record in context.bus.read(Topic.BUILT, 0)]
        counted = context.registry.get_sample_value("evener_trajectories_total", {"termination_reason": end.value})

    assert isinstance(trajectory, TrajectoryBuilt)
    assert (trajectory.termination_reason, counted) == (end, 1.0)
    view = SessionView(session_id="a", source=SessionSource.LOG, attempts=(), calls=(), trajectory=trajectory, messages=())
    assert f"{end.value} ({told})" in printed(heading(view))


@pytest.mark.parametrize("end", [end for end in TerminationReason if not END_POLICY[end].trainable])
def test_session_that_ended_by_no_doing_of_its_agents_is_not_graded_and_in_no_baseline(end: TerminationReason) -> None:
    """Whatever its exit code was, and even if somebody had given it a reward: trainers get the others alone."""
    lost = built(index=3, end=end)
    assert not_graded(lost) is not None
    event = ended((*group((1.0, 0.0, 0.5, 1.0))[:3], scored(lost, reward=1.0)))
    if END_POLICY[end].fails_task:
        assert not isinstance(event, GroupMerged)
        return
    assert isinstance(event, GroupMerged)
    delivered = group_of(event, GroupPosition(partition=0, offset=0, next_offset=1))

    assert [session.reward for session in delivered.sessions] == [1.0, 0.0, 0.5]
    assert (event.members[3].excluded, event.members[3].termination_reason) == (ExclusionReason.UNTRAINABLE_END, end)


@pytest.mark.parametrize("end", [end for end in TerminationReason if END_POLICY[end].trainable])
def test_session_that_its_agent_ended_is_graded_and_trained(end: TerminationReason) -> None:
    """A harness that crashed, a budget that was spent, an overflow, a loop: they count with their reward, and say why they ended."""
    cut = built(index=3, end=end)
    assert not_graded(cut) is None
    event = ended((*group((1.0, 0.0, 0.5, 1.0))[:3], scored(cut, reward=0.25)))
    assert isinstance(event, GroupMerged)
    delivered = group_of(event, GroupPosition(partition=0, offset=0, next_offset=1))

    assert [session.reward for session in delivered.sessions] == [1.0, 0.0, 0.5, 0.25]
    assert event.members[3].termination_reason is end
