"""Which failure ended an agent's work: the same as by comparing each failed call with each answered one, and in one pass."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.support.builders import T0, alone, call_closed, call_failed, call_opened, choice, started
from tests.support.lines import lines_run
from tests.support.world import World, tool, user

from evener.proto.reasons import INFRASTRUCTURE, CallFailure, TerminationReason
from evener.proto.sessions import Placement, RootReason
from evener.tokens.digests import Message
from evener.tokens.forest import Call
from evener.tokens.kinds import Conversations
from evener.tokens.last_failure import last_failure
from evener.tokens.place import nowhere
from evener.tokens.session import SessionLog

REASONS = (None, CallFailure.OVERLOADED, CallFailure.ENGINE_ERROR, CallFailure.CONTEXT_OVERFLOW, CallFailure.CANCELLED)


class Told(NamedTuple):
    """A call: its conversation, body and request, why it failed (None: it was answered), and how long that took."""

    conversation: int
    body: int
    request: int
    failure: CallFailure | None
    seconds: int = 0


def session_of(calls: Sequence[Told]) -> SessionLog:
    """Return a session with these calls, opened a second after each other."""
    session = SessionLog("t.0")
    assert session.apply(started("t.0", alone()), offset=0, record_at=T0)
    for number, told in enumerate(calls, 1):
        placement = Placement(rule=1, root=RootReason.FIRST, conversation=f"conversation {told.conversation}")
        placed = structs.replace(nowhere(), placement=placement)
        opened = call_opened("t.0", placed, [], number=number, body_digest=str(told.body), request_id=f"r{told.request}")
        assert session.forest.open(opened, number)
        if told.failure is None:
            assert session.forest.close(call_closed(opened, [choice([1], {"role": "assistant"}, logprobs=[-0.1])]))
        else:
            assert session.forest.fail(call_failed(opened, told.failure, failed_at=opened.opened_at + told.seconds + 0.5))
    return session


def by_comparing_all(session: SessionLog) -> CallFailure | None:
    """Return the same by the rule's own words."""
    calls, known = session.forest.in_order(), Conversations(session)

    def goes_on(one: Call, failed: Call) -> bool:
        assert failed.failed is not None
        return failed.opened.request_id in one.requests or one.opened.opened_at >= failed.failed.failed_at

    def tells(one: Call, failed: Call) -> bool:
        same_request, same_body = failed.opened.request_id in one.requests, one.opened.body_digest == failed.opened.body_digest
        return same_request or same_body or known.of(one.call_id) in {*known.main, known.of(failed.call_id)}

    answered = [call for call in calls if call.answered]
    failed = [call for call in reversed(calls) if call.failed is not None and call.failed.reason is not CallFailure.CANCELLED]
    for call in failed:
        assert call.failed is not None
        if call.failed.reason in INFRASTRUCTURE and not any(tells(one, call) and goes_on(one, call) for one in answered):
            return call.failed.reason
    if not failed or failed[0].failed is None or any(goes_on(one, failed[0]) for one in answered):
        return None
    return failed[0].failed.reason


TOLD = st.builds(Told, st.integers(0, 3), st.integers(0, 3), st.integers(0, 5), st.sampled_from(REASONS), st.integers(0, 5))


@given(st.lists(TOLD, max_size=9))
def test_one_pass_finds_what_comparing_all_calls_finds(calls: list[Told]) -> None:
    made = session_of(calls)
    assert last_failure(made) == by_comparing_all(made)


def test_twice_as_many_failed_calls_are_twice_the_work() -> None:
    """The gateway asks on its loop: 2,000 answers and 2,000 failures stopped it for 1.6 s."""

    def work(count: int) -> int:
        answered = [Told(0, number, number, None) for number in range(count)]
        failed = [Told(0, count + number, count + number, CallFailure.CONTEXT_OVERFLOW) for number in range(count)]
        made = session_of(answered + failed)
        return lines_run(lambda: last_failure(made))

    assert work(400) < 2.5 * work(200)


TOOLS = [{"name": "run"}]


def agent(world: World) -> list[Message]:
    """Have the agent answered once with a tool call; return its next request."""
    messages: list[Message] = [{"role": "system", "content": "be good there"}, user("do")]
    messages.append(world.ask(messages, 'let me<call>{"cmd": "there"}', tools=TOOLS))
    return [*messages, tool(messages[-1], "rain")]


def test_title_that_is_renamed_does_not_excuse_that_the_agent_got_no_answer() -> None:
    """The title was asked for before the agent began: an older conversation, for which no agent waits."""
    world = World()
    title = [user("Title of: do")]
    answer = world.ask(title, "A thing")
    world.fail(world.open(agent(world), TOOLS)[1], CallFailure.NOT_COMMITTED)
    world.ask([*title, answer, user("shorter")], "Thing")

    assert world.seal(exit_code=1).termination_reason is TerminationReason.INFRASTRUCTURE


def test_agent_whose_first_prompt_says_the_time_may_ask_again() -> None:
    """The second request is another conversation, and the main one."""
    world = World()
    world.fail(world.open([user("it is ten"), user("do")], TOOLS)[1], CallFailure.OVERLOADED)
    world.ask([user("it is eleven"), user("do")], "there", tools=TOOLS)

    assert world.seal().termination_reason is TerminationReason.FINISHED


@pytest.mark.parametrize(("later", "end"), [("title", TerminationReason.INFRASTRUCTURE), ("agent", TerminationReason.HARNESS_FAILED)])
def test_request_that_the_log_does_not_know_is_excused_by_the_agents_own_alone(later: str, end: TerminationReason) -> None:
    """Only the relay knows of it. What came afterwards is in the log."""
    world = World()
    messages = agent(world)
    if later == "title":
        world.ask([user("Title of: do")], "A thing")
    else:
        world.ask(messages, "there", tools=TOOLS)
    request_id = world.session.forest.in_order()[-1].opened.request_id
    sealed = world.seal(exit_code=1, unanswered=CallFailure.OVERLOADED, later_requests=(request_id,))

    assert sealed.termination_reason is end
