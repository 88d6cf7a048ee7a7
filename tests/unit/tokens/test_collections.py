"""What becomes of a recording that did not end well: it cannot be run again, and what was sampled is worth keeping."""

import pytest
from tests.support.world import World, plain, replay, user

from evener.audit.engine_ledger import check
from evener.proto.codec import encode
from evener.proto.reasons import CallFailure, ExclusionReason, TerminationReason
from evener.proto.sessions import SessionGivenUp
from evener.proto.spec import HarnessSpec, Purpose
from evener.tokens.attempt_end import attempt_end
from evener.tokens.rows import cut

RECORDED = HarnessSpec(name="none", sandbox="none")


@pytest.mark.parametrize(("exit_code", "end"), [(0, TerminationReason.FINISHED), (1, TerminationReason.HARNESS_FAILED)])
def test_recording_whose_last_call_we_failed_ends_as_its_program_did_and_keeps_its_rows(exit_code: int, end: TerminationReason) -> None:
    """A program that takes a cut stream for a success exits with 0; nobody can start it anew."""
    world = World(harness=RECORDED, purpose=Purpose.COLLECT)
    answer = world.ask([user("go")], "a good sample")
    world.fail(world.open([user("go"), answer, user("on")])[1], CallFailure.ENGINE_UNREACHABLE)
    trajectory = world.seal(exit_code)

    assert trajectory.termination_reason is end
    assert trajectory.detail == "its last call had no answer (engine_unreachable), and a recording cannot be run again"
    assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0
    assert check([plain(trajectory)], world.ledger_lines()) == []
    assert encode(replay(world.log)) == encode(trajectory)


def test_session_that_a_trainer_waits_for_is_run_again_whoever_runs_its_process() -> None:
    """Its purpose says what it is for."""
    world = World(harness=RECORDED)
    world.ask([user("go")], "a good sample")
    world.fail(world.open([user("on")])[1], CallFailure.ENGINE_UNREACHABLE)

    assert world.seal().termination_reason is TerminationReason.INFRASTRUCTURE


@pytest.mark.parametrize(("purpose", "excluded"), [(Purpose.COLLECT, {}), (Purpose.TRAIN, {ExclusionReason.UNTRAINABLE_END: 11})])
def test_collected_session_that_was_given_up_keeps_its_rows(purpose: Purpose, excluded: dict[ExclusionReason, int]) -> None:
    """Nothing of a collection is trained, so nothing is left out for its end."""
    world = World(purpose=purpose)
    world.ask([user("go")], "abcdefghij")
    end = TerminationReason.ATTEMPTS_USED_UP
    world.write(SessionGivenUp(session_id="t.0", attempt=1, termination_reason=end, given_up_at=1.0, spec=world.spec))
    found = attempt_end(world.session, None)

    assert found == (end, "")
    assert cut(world.session, end).accounting.excluded == excluded
