"""The faults of Evener that the audit finds behind a session's end, whatever its harness said of it."""

from typing import Any

import pytest
from tests.support.world import World, user

from evener.audit.built import BuiltFacts
from evener.audit.ours import met_of_ours
from evener.audit.snapshot import EventRecord
from evener.bus.port import Record
from evener.proto.codec import decode
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.topics import Topic
from evener.proto.trajectories import RowKind
from evener.tokens.rows import cut


def found(world: World, **of_exit: Any) -> list[str]:
    """Return what the audit finds, had the session been built as one that its agent finished."""
    built = world.seal(**of_exit)
    main = cut(world.session, TerminationReason.FINISHED).rows
    facts = BuiltFacts(
        at=[],
        contents=set(),
        termination_reason=TerminationReason.FINISHED,
        attempt=built.attempt,
        own_tokens=built.accounting.sampled,
        versions=(),
        main_calls=frozenset(call for row in main if row.kind is RowKind.MAIN for call in row.calls),
        rows_digest="",
        inconsistencies=(),
        records=None,
        strategy=built.strategy,
    )
    records = [
        EventRecord(Record(topic=Topic.SESSIONS, partition=0, offset=at, key="t.0", value=value, headers=(), timestamp_ms=0), decode(value))
        for at, value in enumerate(world.log)
    ]
    return list(met_of_ours(facts, records))


@pytest.mark.parametrize("reason", [CallFailure.OVERLOADED, CallFailure.ENGINE_ERROR])
def test_call_that_failed_last_is_found_although_its_harness_exited_with_0(reason: CallFailure) -> None:
    """It may have given up for that."""
    world = World()
    world.ask([user("go")], "fine")
    world.fail(world.open([user("there")])[1], reason)

    assert found(world) == [f"a call that its agent waited for failed for a reason of ours: {reason}"]


def test_call_that_was_answered_afterwards_shows_that_the_agent_went_on() -> None:
    world = World()
    world.fail(world.open([user("go")])[1], CallFailure.OVERLOADED)
    world.ask([user("go")], "fine")

    assert found(world) == []


def test_answer_to_a_sub_agent_does_not_hide_that_its_agent_got_none() -> None:
    """The agent gave up; its sub-agent's call was opened last."""
    world = World()
    answer = world.ask([user("go")], "I ask a helper.")
    world.fail(world.open([user("go"), answer, user("on")])[1], CallFailure.OVERLOADED)
    world.ask([user("look")], "I looked.")

    assert found(world) == ["a call that its agent waited for failed for a reason of ours: overloaded"]


def test_agent_that_saw_its_sub_agent_fail_went_on() -> None:
    world = World()
    answer = world.ask([user("go")], "I ask a helper.")
    world.fail(world.open([user("look")])[1], CallFailure.OVERLOADED)
    world.ask([user("go"), answer, user("error 503")], "I look myself.")

    assert found(world) == []


def test_title_that_is_renamed_does_not_hide_that_the_agent_got_no_answer() -> None:
    """The services once took any older conversation for the one that had waited."""
    world = World()
    title = world.ask([user("Title of: go")], "A thing")
    first = world.ask([user("go")], "I go.", tools=[{"name": "run"}])
    world.fail(world.open([user("go"), first, user("on")], [{"name": "run"}])[1], CallFailure.NOT_COMMITTED)
    world.ask([user("Title of: go"), title, user("shorter")], "Thing")

    assert found(world) == ["a call that its agent waited for failed for a reason of ours: not_committed"]


@pytest.mark.parametrize("went_on", [False, True])
def test_request_that_only_the_relay_knows_is_found_unless_its_agent_went_on(*, went_on: bool) -> None:
    world = World()
    first = world.ask([user("go")], "I go.", tools=[{"name": "run"}])
    if went_on:
        world.ask([user("go"), first, user("error 503")], "On.", tools=[{"name": "run"}])
    else:
        world.ask([user("Title of: go")], "A thing")
    later = world.session.forest.in_order()[-1].opened.request_id

    told = found(world, unanswered=CallFailure.OVERLOADED, later_requests=(later,))
    assert told == ([] if went_on else ["a request had no answer for a reason of ours, and its agent did not go on: overloaded"])
