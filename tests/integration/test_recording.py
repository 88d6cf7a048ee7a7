"""A recording at the gateway: it cannot be run again, so its tokens are kept."""

from pathlib import Path

from tests.integration.test_gateway import SCRIPT, rebuilt
from tests.support.gateway import gateway

from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.sessions import AttemptEnded, SessionSealed
from evener.proto.spec import HarnessSpec, Purpose


async def test_recording_whose_last_answer_was_cut_is_sealed_with_its_rows(tmp_path: Path) -> None:
    """Its program took the cut stream for a success and left with 0: there is no further attempt, and four good samples are kept."""
    async with gateway(tmp_path, SCRIPT) as hand:
        recorded = HarnessSpec(name="none", sandbox="none")
        capability = await hand.start("s1", harness=recorded, purpose=Purpose.COLLECT)
        for number in range(4):
            await hand.say(capability, [{"role": "user", "content": f"question {number}"}])
        await hand.exit("s1", unanswered=CallFailure.ENGINE_UNREACHABLE)
        sealed = await hand.until("s1", SessionSealed)
        trajectory = await rebuilt(hand, "s1")
        ended = [event for event in await hand.log("s1") if isinstance(event, AttemptEnded)]

        assert (sealed.termination_reason, ended, trajectory.inconsistencies) == (TerminationReason.FINISHED, [], ())
        assert "no answer (engine_unreachable)" in sealed.detail
        assert len(trajectory.rows) == 4
        assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0
