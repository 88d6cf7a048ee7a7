"""Sessions of every kind, checked by the independent checker against the engine's ledger."""

import hashlib

import msgspec
import numpy as np
import pytest
from msgspec import structs
from tests.support.world import World, plain, replay, tool, user

from evener.audit.engine_ledger import check
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.codec import decode, encode
from evener.proto.reasons import INFRASTRUCTURE, CallFailure, ExclusionReason, TerminationReason
from evener.proto.sessions import CallClosed, CallOpened, FinishReason, MaskRange, MatchedBy, RootReason, SessionGivenUp
from evener.proto.spec import Quirks, SideCall, Strategy, Tolerance
from evener.proto.trajectories import RowKind, TrajectoryBuilt
from evener.tokens.attempt_end import attempt_end
from evener.tokens.conversation import conversation
from evener.tokens.digests import Message
from evener.tokens.rows import cut, digest
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build, nothing_sampled

CALL = 'let me see<call>{"cmd": "there in the hen"}'


def assert_true(world: World, trajectory: TrajectoryBuilt) -> None:
    """The checker finds nothing, and a replay of the log gives the same bytes."""
    assert check([plain(trajectory)], world.ledger_lines()) == []
    assert encode(replay(world.log)) == encode(trajectory)
    assert not trajectory.inconsistencies


def test_line_with_tool_turns_is_one_row_that_extends_the_sampled_ids() -> None:
    """The common case: every call's context is the last one's plus the new messages."""
    world = World()
    messages = [user("the weather in Berlin")]
    for _ in range(4):
        messages.append(world.ask(messages, CALL))
        messages.append(tool(messages[-1], "rain there"))
    world.ask(messages, "it rains in the north")
    trajectory = world.seal()

    assert_true(world, trajectory)
    (row,) = trajectory.rows
    assert row.kind is RowKind.MAIN
    assert row.root is RootReason.FIRST
    assert len(row.calls) == 5
    assert trajectory.accounting.delivered == trajectory.accounting.sampled
    assert trajectory.answer == "it rains in the north"
    assert [call["fed_ids"] for call in world.ledger] == [int32s(row.ids)[: len(call["fed_ids"])].tolist() for call in world.ledger]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
def test_digest_is_that_of_all_rows_in_one_piece(count: int) -> None:
    """The log has digests of this form, for any number of rows."""
    world = World()
    world.ask([user("count")], "one two three")
    rows = world.seal().rows * count
    assert digest(rows) == hashlib.sha256(msgspec.msgpack.Encoder(order="deterministic").encode(rows)).hexdigest()


def test_answer_cut_by_length_gets_its_closing_token_as_given() -> None:
    """The end-of-turn token that was not sampled is not trained either."""
    world = World()
    first = world.ask([user("count")], "one two three", finish=FinishReason.LENGTH)
    world.ask([user("count"), first, user("go on")], "four")
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert len(trajectory.rows) == 1


def test_rewritten_history_starts_a_new_root_and_the_old_answer_is_still_trained_once() -> None:
    """Nothing is spliced: two rows, each with what was sampled in its own context."""
    world = World()
    messages = [user("a question there"), world.ask([user("a question there")], "an answer in the end")]
    world.ask([messages[0], {"role": "assistant", "content": "something else"}, user("then?")], "then this")
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert [row.root for row in trajectory.rows] == [RootReason.FIRST, RootReason.REWRITTEN]
    assert trajectory.accounting.delivered == trajectory.accounting.sampled


def test_same_request_again_is_a_new_sample_of_its_own() -> None:
    """Voting harnesses exist: both answers are trained, the second counted as resampled."""
    world = World()
    world.ask([user("vote there")], "yes then")
    second = world.ask([user("vote there")], "no then")
    world.ask([user("vote there"), second, user("why?")], "because")
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert len(trajectory.rows) == 2
    assert trajectory.accounting.resampled > 0


def test_equal_siblings_the_last_received_is_extended() -> None:
    """Two equal answers to one prompt: the one whose answer was received is the parent, and the choice is recorded."""
    world = World()
    world.ask([user("vote")], "yes")
    answer = world.ask([user("vote")], "yes")
    placed, opened = world.open([user("vote"), answer, user("why?")])
    assert placed.placement.parent is not None
    assert placed.placement.parent.call_id == "c2"
    assert placed.placement.siblings == 2
    world.close(placed, opened, ["so"])
    world.undeliver("c2")
    placed, opened = world.open([user("vote"), answer, user("again?")])
    assert placed.placement.parent is not None
    assert placed.placement.parent.call_id == "c1"
    world.close(placed, opened, ["so"])
    assert_true(world, world.seal())


def test_tools_are_the_start_of_the_chain() -> None:
    """The same messages under another tool list are another context."""
    world = World()
    tools = [{"name": "run", "description": "runs"}]
    first = world.ask([user("hello there")], "hi there", tools=tools)
    placed, opened = world.open([user("hello there"), first, user("more")], tools=[*tools, {"name": "read"}])
    world.close(placed, opened, ["ok"])

    assert placed.placement.root is RootReason.TOOLS_CHANGED
    assert_true(world, world.seal())


def test_all_choices_of_a_call_are_trained_once_in_their_own_rows() -> None:
    """n answers share their prompt; each is a branch."""
    world = World()
    placed, opened = world.open([user("three of them")])
    answers = world.close(placed, opened, ["the first", "the second", "the third"])
    world.ask([user("three of them"), answers[1], user("go on with that")], "well then")
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert len(trajectory.rows) == 3
    assert trajectory.rows[0].kind is RowKind.MAIN or trajectory.rows[1].kind is RowKind.MAIN


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        (ExclusionReason.ORPHAN, lambda world: world.undeliver("c1")),
        (ExclusionReason.ORPHAN, lambda world: world.close(*world.open([user("hello")], retry_of="c1"), ["again"])),
    ],
)
def test_answer_that_was_not_received_is_kept_and_not_trained(reason: ExclusionReason, make: object) -> None:
    """Orphans: told so by the relay, or superseded by a transport retry."""
    world = World()
    world.ask([user("hello")], "lost in the wire")
    assert callable(make)
    make(world)
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert trajectory.accounting.excluded[reason] == len(world.ledger[0]["sampled_ids"])


def test_aborted_answer_is_kept_and_not_trained_and_never_extended() -> None:
    """A partial answer is nobody's context."""
    world = World()
    partial = world.ask([user("hello")], "half an ans", finish=FinishReason.ABORTED)
    placed, opened = world.open([user("hello"), partial, user("go on")])
    world.close(placed, opened, ["fine"])
    trajectory = world.seal()

    assert placed.placement.root is RootReason.NO_BRIDGE
    assert_true(world, trajectory)
    assert trajectory.accounting.excluded == {ExclusionReason.ABORTED: len(world.ledger[0]["sampled_ids"])}


def test_side_call_is_served_kept_and_not_trained() -> None:
    """A title is not the agent's work."""
    world = World(quirks=Quirks(side_calls=(SideCall(name="title", last="^Title"),)))
    world.ask([user("Title of: the thing")], "A thing")
    world.ask([user("do the thing")], "done then")
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert [row.calls for row in trajectory.rows] == [("c2",)]
    assert trajectory.accounting.side_calls == 1
    assert trajectory.accounting.excluded == {ExclusionReason.SIDE_CALL: len(world.ledger[0]["sampled_ids"])}


def test_earlier_attempt_is_counted_and_not_trained() -> None:
    """What an attempt sampled that was run again is left out by name."""
    world = World()
    world.ask([user("hello")], "first try")
    world.start(2)
    world.ask([user("hello")], "second try")
    trajectory = world.seal()

    assert_true(world, trajectory)
    assert trajectory.accounting.excluded == {ExclusionReason.EARLIER_ATTEMPT: len(world.ledger[0]["sampled_ids"])}
    assert trajectory.attempt == 2


def test_tokens_of_failed_tries_are_counted_by_a_reason_of_their_own() -> None:
    """Those of all attempts are counted, whatever becomes of the session; the seal and a replay agree."""
    world = World()
    _, opened = world.open([user("hello")])
    world.fail(opened, CallFailure.ENGINE_UNREACHABLE, sampled_tokens=5)
    world.start(2)
    _, opened = world.open([user("hello")])
    world.fail(opened, CallFailure.ENGINE_ERROR, sampled_tokens=2)
    world.ask([user("hello")], "hi")
    trajectory = world.seal()

    books = trajectory.accounting
    assert books.excluded == {ExclusionReason.FAILED_TRY: 7}
    assert books.sampled == books.delivered + 7 == world.session.sampled_tokens()
    assert [call.sampled_tokens for call in trajectory.calls] == [5, 2, books.delivered]
    assert (trajectory.inconsistencies, replay(world.log).accounting) == ((), books)


def test_last_call_failed_by_us_ends_in_infrastructure_whatever_the_exit_code() -> None:
    """A harness that exits 0 after our 503 was not finished."""
    world = World()
    world.ask([user("hello")], "hi")
    _, opened = world.open([user("hello again")])
    world.fail(opened, CallFailure.ENGINE_UNREACHABLE)
    trajectory = world.seal()

    assert trajectory.termination_reason is TerminationReason.INFRASTRUCTURE
    assert trajectory.rows == ()
    assert trajectory.accounting.excluded == {ExclusionReason.UNTRAINABLE_END: len(world.ledger[0]["sampled_ids"])}


def test_repeated_delivery_changes_nothing() -> None:
    """Every record twice, and the first ones once more at the end."""
    world = World()
    messages = [user("there")]
    messages.append(world.ask(messages, CALL))
    messages.append(tool(messages[-1], "in the end"))
    world.ask(messages, "fine")
    trajectory = world.seal()

    twice = [record for record in world.log for _ in range(2)]
    assert encode(replay([*twice, *world.log[:3]])).count(b"c1") == encode(trajectory).count(b"c1")
    assert replay(twice).rows == trajectory.rows
    assert replay(twice).accounting == trajectory.accounting


def test_later_calls_never_change_earlier_segments() -> None:
    """Property 5: the contexts of old calls are the same after new ones."""
    world = World()
    messages = [user("there")]
    contexts: dict[str, list[int]] = {}
    for turn in range(5):
        messages.append(world.ask(messages, f"turn {turn} in the thing"))
        messages.append(user("then?"))
        for call_id, context in contexts.items():
            assert world.session.forest.context(world.session.forest.calls[call_id]).tolist() == context
        contexts = {c.call_id: world.session.forest.context(c).tolist() for c in world.session.forest.in_order()}


def test_missing_call_opened_is_a_named_inconsistency_and_counts_its_tokens() -> None:
    """A hole in the log: what is certain is delivered, the rest is counted as inconsistent."""
    world = World()
    messages = [user("there")]
    messages.append(world.ask(messages, CALL))
    messages.append(tool(messages[-1], "in"))
    world.ask(messages, "fine")
    world.seal()

    without = [event for event in world.events if not (isinstance(event, CallOpened) and event.call_id == "c1")]
    rebuilt = replay([encode(event) for event in without])
    assert rebuilt.accounting.excluded == {ExclusionReason.INCONSISTENT: rebuilt.accounting.sampled}
    assert rebuilt.rows == ()
    assert any("c1" in inconsistency for inconsistency in rebuilt.inconsistencies)
    assert any("differ" in inconsistency for inconsistency in rebuilt.inconsistencies)


def test_per_call_rows_train_each_answer_once() -> None:
    """The strategy to compare with: a row for each call, the same tokens trained."""
    world = World()
    messages = [user("there")]
    for _ in range(3):
        messages.append(world.ask(messages, CALL))
        messages.append(tool(messages[-1], "rain"))
    trajectory = world.seal()
    per_call = build(world.session, strategy=Strategy.PER_CALL)

    assert check([plain(per_call)], world.ledger_lines()) == []
    assert len(per_call.rows) == 3
    assert per_call.accounting == trajectory.accounting
    assert [int(uint8s(row.loss_mask).sum()) for row in per_call.rows] == [len(entry["sampled_ids"]) for entry in world.ledger]


TOLERANT = Quirks(tolerances=tuple(Tolerance))


@pytest.mark.parametrize(
    ("quirks", "change", "by"),
    [
        (Quirks(), lambda m: m, MatchedBy.CALL_ID),
        (TOLERANT, lambda m: m | {"content": m["content"].strip()}, MatchedBy.CALL_ID),
        (TOLERANT, lambda m: m | {"tool_calls": [m["tool_calls"][0] | {"arguments": {"n": 1}}]}, MatchedBy.CALL_ID),
        (Quirks(), lambda m: m | {"content": m["content"].strip()}, None),
        (Quirks(), lambda m: m | {"tool_calls": [m["tool_calls"][0] | {"arguments": {"n": 1}}]}, None),
        (TOLERANT, lambda m: m | {"tool_calls": [m["tool_calls"][0] | {"arguments": {"n": 2}}]}, None),
        (TOLERANT, lambda m: m | {"tool_calls": [m["tool_calls"][0] | {"id": "callother"}]}, None),
    ],
    ids=["verbatim", "trimmed", "numbers", "trimmed_undeclared", "numbers_undeclared", "other_arguments", "other_id"],
)
def test_answer_comes_back_changed(quirks: Quirks, change: object, by: MatchedBy | None) -> None:
    """Within the declared tolerances it is ours; beyond them it is the harness's own message."""
    world = World(quirks=quirks)
    answer = world.ask([user("go")], '  see <call>{"n": 1.0}')
    assert callable(change)
    sent = change(msgspec.json.decode(msgspec.json.encode(answer)))
    placed, opened = world.open([user("go"), sent, {"role": "tool", "tool_call_id": sent["tool_calls"][0]["id"], "content": "ok"}])
    world.close(placed, opened, ["fine"])

    assert placed.placement.matched_by == by
    assert (placed.placement.parent is None) == (by is None)
    assert_true(world, world.seal())


def test_token_without_logprob_or_version_is_masked_with_its_reason() -> None:
    """An inconsistency of one token masks that token, not its neighbours."""
    world = World()
    world.ask([user("go")], "abcd")
    closed = world.session.forest.calls["c1"].closed
    assert isinstance(closed, CallClosed)
    choice = closed.choices[0]
    damaged = msgspec.structs.replace(
        choice,
        logprobs=b"\x00\x00\xc0\x7f" + bytes(choice.logprobs)[4:],  # type: ignore[arg-type]  # inline bytes
        versions=bytes(choice.versions)[:-4] + b"\xff\xff\xff\xff",  # type: ignore[arg-type]  # inline bytes
    )
    world.session.forest.calls["c1"].closed = msgspec.structs.replace(closed, choices=(damaged,))
    trajectory = world.seal()

    assert trajectory.accounting.excluded == {ExclusionReason.INCONSISTENT: 1, ExclusionReason.VERSION_UNKNOWN: 1}
    assert uint8s(trajectory.rows[0].loss_mask)[-5:].tolist() == [0, 1, 1, 1, 0]


def test_second_attempt_never_extends_an_answer_of_the_first() -> None:
    """Equal prompts, equal answers, and the second attempt's own copy was not received: still a context of its own."""
    world = World()
    answer = world.ask([user("go")], "same")
    world.start(2)
    assert world.ask([user("go")], "same") == answer
    world.undeliver("c2")
    placed, opened = world.open([user("go"), answer, user("more")])
    world.close(placed, opened, ["fine"])
    trajectory = world.seal()

    assert placed.placement.parent is not None
    assert placed.placement.parent.call_id == "c2"
    assert_true(world, trajectory)


def test_first_call_asked_again_after_our_failure_is_still_the_first() -> None:
    """Nothing was answered before: neither compaction nor a resample."""
    world = World()
    world.fail(world.open([user("go")])[1], CallFailure.ENGINE_UNREACHABLE)
    placed, opened = world.open([user("go")])
    world.close(placed, opened, ["fine"])

    assert placed.placement.root is RootReason.FIRST
    assert_true(world, world.seal())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_giving_up_ends_its_own_attempt_whichever_was_written_first(order: tuple[int, int]) -> None:
    """A runner that thaws and starts what was given up does not bring it back; a later attempt does."""
    world = World()
    start = world.session.starts[1]
    gone = SessionGivenUp(session_id="t.0", attempt=1, termination_reason=TerminationReason.DEADLINE, given_up_at=1.0, spec=world.spec)
    session = SessionLog("t.0")
    for at in order:
        session.apply((start, gone)[at], offset=at, record_at=100.0)

    assert attempt_end(session, None) == (TerminationReason.DEADLINE, "")
    assert not session.accepts("s1")
    session.apply(msgspec.structs.replace(start, attempt=2, start_id="s2"), offset=3, record_at=100.0)
    assert attempt_end(session, None) is None
    assert session.accepts("s2")


def test_start_that_the_owner_had_not_read_at_the_seal_changes_nothing() -> None:
    """It stands before the seal in the log; the seal says which attempt it is of."""
    world = World()
    world.ask([user("go")], "fine")
    start = world.session.starts[1]
    trajectory = world.seal()
    late = encode(msgspec.structs.replace(start, attempt=2, start_id="s2"))

    rebuilt = replay([*world.log[:-1], late, world.log[-1]])
    assert (rebuilt.rows, rebuilt.attempt, rebuilt.exit) == (trajectory.rows, 1, trajectory.exit)
    assert rebuilt.inconsistencies == ()


def test_answer_of_a_frozen_engine_is_the_harnesss_own_message() -> None:
    """It is neither extended nor trained."""
    world = World()
    placed, opened = world.open([user("judge this")])
    answer = world.close(placed, msgspec.structs.replace(opened, policy=None, engine_id="judge"), ["fine"])[0]
    placed, opened = world.open([user("judge this"), answer, user("and this")])
    world.close(placed, opened, ["good"])
    trajectory = world.seal()

    assert placed.placement.parent is None
    assert_true(world, trajectory)
    assert trajectory.accounting.excluded == {ExclusionReason.FROZEN: len(world.ledger[0]["sampled_ids"])}


def test_aborted_call_is_no_answer_to_an_earlier_failure() -> None:
    """The harness gave up while it asked again: our failure explains its exit."""
    world = World()
    world.fail(world.open([user("go")])[1], CallFailure.ENGINE_UNREACHABLE)
    world.ask([user("go")], "half", finish=FinishReason.ABORTED)

    assert world.seal(exit_code=1).termination_reason is TerminationReason.INFRASTRUCTURE


def test_messages_of_a_branch_are_those_of_its_own_choice() -> None:
    """Three answers to one prompt are three conversations."""
    world = World()
    placed, opened = world.open([user("three of them")])
    answers = world.close(placed, opened, ["the first", "the second", "the third"])
    world.seal()
    branches = cut(world.session, TerminationReason.FINISHED).branches

    assert [conversation(world.session.forest, branch)[-1] for branch in branches] == answers


@pytest.mark.parametrize("reason", [ExclusionReason.CONSTRAINED, ExclusionReason.VERSION_UNKNOWN, ExclusionReason.IMAGE])
def test_masked_tokens_keep_their_logprobs_and_are_counted_under_their_reason(reason: ExclusionReason) -> None:
    """The engine's logprob is not that of the distribution it sampled from; the tokens after the range are trained all the same."""
    world = World()
    world.ask([user("go")], "the end of it")
    trajectory = world.seal()
    masked = MaskRange(start=1, end=4, reason=reason)
    session = SessionLog("t.0")
    for offset, record in enumerate(world.log, start=1):
        event = decode(record)
        if isinstance(event, CallClosed):
            event = structs.replace(event, choices=(structs.replace(event.choices[0], masked=(masked,)),))
        session.apply(event, offset=offset, record_at=100.0)
    made = cut(session, trajectory.termination_reason)
    (before,), (row,) = trajectory.rows, made.rows

    changed = np.flatnonzero(uint8s(before.loss_mask) != uint8s(row.loss_mask))
    first = int(np.flatnonzero(uint8s(before.loss_mask))[0])
    assert changed.tolist() == [first + 1, first + 2, first + 3]
    assert np.array_equal(float32s(before.logprobs), float32s(row.logprobs), equal_nan=True)
    assert made.accounting.excluded == {reason: 3}
    assert made.accounting.delivered == trajectory.accounting.delivered - 3


@pytest.mark.parametrize(
    ("second", "quirks", "root", "kind"),
    [
        ([{"role": "system", "content": "helper"}, user("the part")], Quirks(), RootReason.SUB_AGENT, RowKind.SUB_AGENT),
        (
            [{"role": "system", "content": "be good"}, user("Summary: all done")],
            Quirks(compacted="^Summary"),
            RootReason.COMPACTION,
            RowKind.COMPACTION,
        ),
    ],
)
def test_row_carries_the_kind_of_its_root(second: list[Message], quirks: Quirks, root: RootReason, kind: RowKind) -> None:
    """What a trainer may want to weigh otherwise."""
    world = World(quirks=quirks)
    first = [{"role": "system", "content": "be good"}, user("go")]
    tools = [{"name": "run"}]
    world.ask([*first, world.ask(first, "one", tools=tools), user("on")], CALL, tools=tools)
    world.ask(second, "three", tools=tools)
    rows = world.seal().rows

    assert [(row.root, row.kind) for row in rows] == [(RootReason.FIRST, RowKind.MAIN), (root, kind)]


def test_reasoning_that_the_harness_dropped_is_counted_as_reinstated() -> None:
    """Its tokens stay in the context, and the accounting says how many."""
    world = World(quirks=Quirks(tolerances=(Tolerance.REASONING_ABSENT,)))
    answer = world.ask([user("go")], "then in</think>the end")
    sent = {name: value for name, value in answer.items() if name != "reasoning"}
    world.ask([user("go"), sent, user("on")], "fine")
    trajectory = world.seal()

    sampled = int32s(world.session.forest.calls["c1"].choices[0].sampled_ids)
    assert len(trajectory.rows) == 1
    assert trajectory.accounting.reinstated == world.renderer.reasoning_length(sampled) > len("then in</think>") / 2


@pytest.mark.parametrize(("withheld", "rows"), [(True, 1), (False, 2)])
def test_reasoning_that_the_harness_was_not_shown_comes_back_from_the_record(*, withheld: bool, rows: int) -> None:
    """Whatever the harness declares: it cannot return what it never had. One that was shown it has changed the answer."""
    world = World()
    placed, opened = world.open([user("go")])
    opened = structs.replace(opened, reasoning_withheld=withheld)
    [answer] = world.close(placed, opened, ["then in</think>the end"])
    sent = {name: value for name, value in answer.items() if name != "reasoning"}
    world.ask([user("go"), sent, user("on")], "fine")
    trajectory = world.seal()

    assert len(trajectory.rows) == rows
    assert (trajectory.accounting.reinstated > 0) is withheld


def test_calls_lost_with_their_gateway_are_counted() -> None:
    """What they sampled is not known: it is beside the books."""
    world = World()
    world.fail(world.open([user("go")])[1], CallFailure.OWNER_LOST)
    world.fail(world.open([user("go")])[1], CallFailure.CANCELLED)
    world.ask([user("go")], "fine")
    accounting = world.seal().accounting

    assert (accounting.lost_calls, accounting.failed_calls) == (1, 2)


def test_failed_try_of_a_frozen_engine_is_not_the_policys() -> None:
    """Its tokens are among those of failed tries, and not of frozen engines: the call itself says whose it was."""
    world = World()
    world.fail(structs.replace(world.open([user("go")])[1], policy=None), CallFailure.ENGINE_UNREACHABLE, sampled_tokens=5)
    assert nothing_sampled(world.seal())


def test_tokens_of_a_call_whose_gateway_let_it_go_are_in_the_books() -> None:
    """It said how many they were: nothing is lost."""
    world = World()
    world.fail(world.open([user("go")])[1], CallFailure.OWNER_LOST, sampled_tokens=7)
    world.ask([user("go")], "fine")
    accounting = world.seal().accounting

    assert (accounting.lost_calls, accounting.failed_calls) == (0, 1)
    assert accounting.excluded == {ExclusionReason.FAILED_TRY: 7}


@pytest.mark.parametrize("exit_code", [0, 1])
@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE))
def test_call_that_failed_last_is_our_failure_whatever_the_exit_code(exit_code: int, reason: CallFailure) -> None:
    """A harness that gives up waiting may say that it finished."""
    world = World()
    world.ask([user("go")], "fine")
    world.fail(world.open([user("there")])[1], reason)
    assert world.seal(exit_code).termination_reason is TerminationReason.INFRASTRUCTURE


@pytest.mark.parametrize("exit_code", [0, 1])
def test_call_that_failed_beside_an_answered_one_is_our_failure(exit_code: int) -> None:
    """The harness may end for the one without the other."""
    world = World()
    title, failing = world.open([user("a title for it")]), world.open([user("go")])
    world.fail(failing[1], CallFailure.OVERLOADED)
    world.close(*title, ["a title"])
    assert world.seal(exit_code).termination_reason is TerminationReason.INFRASTRUCTURE
