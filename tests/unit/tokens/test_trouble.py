"""How an attempt's end is told: what of ours it met, and why nothing was sampled."""

import pytest
from msgspec import structs
from tests.support.world import World, user

from evener.proto.reasons import CallFailure, ExitCause, TerminationReason
from evener.proto.sessions import Failures, HarnessExited
from evener.tokens.attempt_end import attempt_end
from evener.tokens.session import SessionLog


def left(world: World, *, code: int = 0, unanswered: CallFailure | None = None, failures: tuple[Failures, ...] = ()) -> SessionLog:
    """Return the session after its harness is gone."""
    start = world.session.starts[1]
    exited = HarnessExited(
        session_id=start.session_id,
        attempt=1,
        start_id=start.start_id,
        cause=ExitCause.EXITED,
        exit_code=code,
        detail="its last words",
        exited_at=2.0,
        unanswered=unanswered,
        failures=failures,
    )
    assert world.session.apply(exited, offset=1000, record_at=2.0)
    return world.session


def failed(reason: CallFailure, detail: str = "told so") -> tuple[Failures, ...]:
    return (Failures(reason=reason, count=1, detail=detail),)


def test_harness_that_made_no_call_is_said_to_have_made_none() -> None:
    assert attempt_end(left(World(), code=1), None) == (TerminationReason.HARNESS_FAILED, "its harness made no model call; its last words")


def test_first_prompt_that_does_not_fit_is_named_with_its_numbers() -> None:
    told = failed(CallFailure.CONTEXT_OVERFLOW, "this model's maximum context length is 4096 tokens; the messages have 9000")
    found = attempt_end(left(World(), code=1, failures=told), None)
    assert found is not None
    assert found[1].startswith("its first prompt did not fit the context: this model's maximum context length is 4096 tokens")


def test_context_that_overflows_after_an_answer_is_the_agents_and_needs_no_words() -> None:
    world = World()
    world.ask([user("hi")], "hello")
    found = attempt_end(left(world, code=1, failures=failed(CallFailure.CONTEXT_OVERFLOW)), None)
    assert found == (TerminationReason.HARNESS_FAILED, "its last words")


@pytest.mark.parametrize("answered", [False, True])
def test_refused_call_is_named_whatever_came_after_it(*, answered: bool) -> None:
    world = World()
    if answered:
        world.ask([user("hi")], "hello")
    assert attempt_end(left(world, failures=failed(CallFailure.REFUSED, "stop: not served")), None) == (
        TerminationReason.REFUSED,
        "stop: not served",
    )


def test_fault_of_ours_is_reported_with_the_end_that_it_makes() -> None:
    told = failed(CallFailure.OVERLOADED, "no gateway admits the call now (http://g: status 401: wrong key)")
    found = attempt_end(left(World(), code=1, unanswered=CallFailure.OVERLOADED, failures=told), None)
    assert found == (TerminationReason.INFRASTRUCTURE, "its last words; no gateway admits the call now (http://g: status 401: wrong key)")


def test_request_that_was_refused_and_answered_when_it_was_sent_again_was_not_refused() -> None:
    """Another engine of the policy could serve it."""
    world = World()
    placed, opened = world.open([user("hi")])
    world.fail(opened, CallFailure.REFUSED)
    placed, again = world.open([user("hi")])
    world.close(placed, structs.replace(again, request_id=opened.request_id, try_number=2), ["hello"])
    assert attempt_end(left(world), None) == (TerminationReason.FINISHED, "its last words")


@pytest.mark.parametrize("code", [0, 1])
def test_call_that_failed_beside_an_answered_one_makes_the_attempt_ours(code: int) -> None:
    """A title was being answered when the agent's own call failed for a reason of ours. The exit code tells nothing of that."""
    world = World()
    placed, title = world.open([user("Title of: hi")])
    world.fail(world.open([user("hi")])[1], CallFailure.ENGINE_UNREACHABLE)
    world.close(placed, title, ["A title"])
    found = attempt_end(left(world, code=code), None)
    assert found is not None
    assert found[0] is TerminationReason.INFRASTRUCTURE


def test_harness_that_went_on_after_a_failed_call_failed_by_itself() -> None:
    """It asked again, and was answered."""
    world = World()
    world.fail(world.open([user("hi")])[1], CallFailure.ENGINE_UNREACHABLE)
    world.ask([user("hi")], "hello")
    assert attempt_end(left(world, code=1), None) == (TerminationReason.HARNESS_FAILED, "its last words")


@pytest.mark.parametrize("code", [0, 1])
def test_agent_that_continues_after_its_sub_agent_failed_because_of_ours_is_trained(code: int) -> None:
    """It saw the failure as the result of a tool; what it did then was sampled in that context."""
    world = World()
    history = [user("Fix it.")]
    answer = world.ask(history, "I ask a helper.")
    world.fail(world.open([user("Look.")])[1], CallFailure.ENGINE_ERROR, "the engine failed")
    world.ask([*history, answer, user("error 503")], "The helper failed: I look myself.")
    end = TerminationReason.FINISHED if code == 0 else TerminationReason.HARNESS_FAILED
    found = attempt_end(left(world, code=code), None)
    assert found is not None
    assert found[0] is end


@pytest.mark.parametrize("code", [0, 1])
def test_answer_to_a_sub_agent_does_not_hide_that_its_agent_got_none(code: int) -> None:
    """The agent gave up after a fault of ours while its sub-agent worked on: it was graded for that."""
    world = World()
    history = [user("Fix it.")]
    answer = world.ask(history, "I ask a helper.")
    world.fail(world.open([*history, answer, user("Go on.")])[1], CallFailure.ENGINE_ERROR, "the engine failed")
    world.ask([user("Look.")], "I looked.")
    found = attempt_end(left(world, code=code), None)
    assert found is not None
    assert found[0] is TerminationReason.INFRASTRUCTURE


def test_later_failure_of_the_agent_does_not_hide_an_earlier_one_of_ours() -> None:
    """A sub-agent's request is too long after the agent's own call failed."""
    world = World()
    history = [user("Fix it.")]
    answer = world.ask(history, "I ask a helper.")
    world.fail(world.open([*history, answer, user("Go on.")])[1], CallFailure.ENGINE_ERROR, "the engine failed")
    world.fail(world.open([user("Look.")])[1], CallFailure.CONTEXT_OVERFLOW, "too long")
    found = attempt_end(left(world, code=1), None)
    assert found is not None
    assert found[0] is TerminationReason.INFRASTRUCTURE
