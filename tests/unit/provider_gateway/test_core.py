"""The gateway's decisions, walked one by one."""

import pytest
from tests.support.world import World, user

from evener.dialects.canonical import CanonicalRequest, Image, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.engines.port import LogprobRule
from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling, Target
from evener.provider_gateway.core import (
    FromRecord,
    Join,
    ParsedRequest,
    Sample,
    answer_tokens,
    decide,
    enforced,
    refusal,
    resent,
    seed_of,
    target_of,
    targets_of,
    unsupported,
)
from evener.provider_gateway.inflight import InflightCall


def asked(request_id: str, body_digest: str = "", *, marked_retry: bool = False, repeats: str | None = None) -> ParsedRequest:
    canonical = CanonicalRequest(dialect="openai_chat", model="m", messages=(), tools=(), stream=False, requested_params={})
    return ParsedRequest(
        request_id=request_id,
        dialect=OpenAIChat(),
        canonical=canonical,
        body_digest=body_digest,
        marked_retry=marked_retry,
        repeats=repeats,
    )


def in_flight(body_digest: str, *, listened: bool = True, ended: bool = False, requests: tuple[str, ...] = ("r",)) -> InflightCall:
    call = InflightCall("r", body_digest, 60.0)
    call.requests = set(requests)
    call.listeners = int(listened)
    if ended:
        call.stop()
    return call


def test_resend_is_answered_from_the_record_joined_or_tried_again() -> None:
    """One request id: closed, in flight, lost with its gateway, aborted."""
    world = World()
    world.ask([user("a")], "b")
    assert isinstance(decide(world.session, asked("r1"), {}), FromRecord)
    assert decide(world.session, asked("r9"), {"r9": in_flight("")}) == Join("r9")
    assert decide(world.session, asked("r9"), {}) == Sample(1)
    world.fail(world.open([user("b")])[1], CallFailure.OWNER_LOST)
    assert decide(world.session, asked("r2"), {}) == Sample(2)
    world.ask([user("c")], "half", finish=FinishReason.ABORTED)
    assert decide(world.session, asked("r3"), {}) == Sample(2)


def test_equal_request_is_a_new_sample_unless_it_is_a_retry() -> None:
    """Voting harnesses ask the same twice and want two answers."""
    world = World()
    world.ask([user("a")], "b")
    equal = world.session.forest.calls["c1"].opened.body_digest
    assert decide(world.session, asked("r2", equal), {}) == Sample(1)
    assert decide(world.session, asked("r2", equal), {"r7": in_flight(equal)}) == Sample(1)
    marked = decide(world.session, asked("r2", equal, marked_retry=True), {})
    assert isinstance(marked, FromRecord)
    assert marked.call.call_id == "c1"
    assert decide(world.session, asked("r2", equal, marked_retry=True), {"r7": in_flight(equal)}) == Join("r7")


def test_equal_request_gets_the_answer_that_nobody_received() -> None:
    """Its twin's connection is gone: a retry without a mark. Once received, the next equal request is a new sample."""
    world = World()
    world.ask([user("a")], "b")
    equal = world.session.forest.calls["c1"].opened.body_digest
    world.undeliver("c1")
    assert isinstance(decide(world.session, asked("r2", equal), {}), FromRecord)
    world.deliver("c1", "r2")
    assert decide(world.session, asked("r3", equal), {}) == Sample(1)
    assert isinstance(decide(world.session, asked("r2", equal), {}), FromRecord)


def test_equal_request_joins_a_call_that_nobody_waits_for() -> None:
    world = World()
    assert decide(world.session, asked("r2", "d"), {"r1": in_flight("d", listened=False)}) == Join("r1")


def test_marked_retry_of_a_lost_call_supersedes_it() -> None:
    """What its twin sampled before it was lost is not trained."""
    world = World()
    opened = world.open([user("a")])[1]
    world.fail(opened, CallFailure.ENGINE_ERROR)
    assert decide(world.session, asked("r2", opened.body_digest, marked_retry=True), {}) == Sample(1, retry_of=opened.call_id)
    assert decide(world.session, asked("r2", opened.body_digest), {}) == Sample(1)


def test_marked_retry_of_a_request_that_was_not_served_takes_no_voters_answer() -> None:
    """Three votes, of which the last was told 503: neither the others' answers are its own, nor what they are waiting for."""
    world = World()
    world.ask([user("a")], "b")
    equal = world.session.forest.calls["c1"].opened.body_digest
    retry = asked("r4", equal, marked_retry=True, repeats="r3")
    assert decide(world.session, retry, {}) == Sample(1)
    assert decide(world.session, retry, {"r2": in_flight(equal)}) == Sample(1)
    assert decide(world.session, retry, {"r2": in_flight(equal, listened=False)}) == Sample(1)
    world.undeliver("c1")
    assert decide(world.session, retry, {}) == Sample(1)


def test_marked_retry_of_a_request_that_failed_supersedes_that_one() -> None:
    """Two votes failed; the first one is tried again."""
    world = World()
    failed = [world.open([user("a")])[1] for _ in range(2)]
    for opened in failed:
        world.fail(opened, CallFailure.ENGINE_ERROR)
    retry = asked("r9", failed[0].body_digest, marked_retry=True, repeats=failed[0].request_id)
    assert decide(world.session, retry, {}) == Sample(1, retry_of=failed[0].call_id)


def test_marked_retries_of_two_votes_get_an_answer_each() -> None:
    """Also while they are sampled: each voter has one of its own."""
    world = World()
    world.ask([user("a")], "b")
    world.ask([user("a")], "c")
    equal = world.session.forest.calls["c1"].opened.body_digest
    given = []
    for request_id in ("r8", "r9"):
        decided = decide(world.session, asked(request_id, equal, marked_retry=True), {})
        assert isinstance(decided, FromRecord)
        given.append(decided.call.call_id)
        world.deliver(decided.call.call_id, request_id)
    assert sorted(given) == ["c1", "c2"]
    flights = {"r3": in_flight(equal), "r4": in_flight(equal, requests=("r4", "r8")), "r8": in_flight(equal, requests=("r4", "r8"))}
    assert decide(world.session, asked("r10", equal, marked_retry=True), flights) == Join("r3")


def test_another_attempt_has_no_twins() -> None:
    world = World()
    world.ask([user("a")], "b")
    equal = world.session.forest.calls["c1"].opened.body_digest
    world.start(2)
    assert decide(world.session, asked("r2", equal, marked_retry=True), {}) == Sample(1)


def test_calls_under_an_old_start_or_after_the_end_are_refused() -> None:
    """An orphan of an earlier attempt is harmless."""
    world = World()
    assert refusal(world.session, "s1") is None
    world.start(2)
    assert refusal(world.session, "s1") is not None
    assert refusal(world.session, "s2") is None
    world.seal()
    refused = refusal(world.session, "s2")
    assert refused is not None
    assert refused.status == 400


def test_vote_does_not_take_the_answer_of_a_call_that_has_just_ended() -> None:
    """Its twin has the answer already, and only has not landed: nobody waits for it because everybody was served."""
    world = World()
    world.ask([user("a")], "b")
    equal = world.session.forest.calls["c1"].opened.body_digest
    landing = {"r1": in_flight(equal, listened=False, ended=True)}
    assert decide(world.session, asked("r2", equal), landing) == Sample(1)
    assert isinstance(decide(world.session, asked("r2", equal, marked_retry=True), landing), FromRecord)
    assert decide(World().session, asked("r2", equal, marked_retry=True), landing) == Sample(1)


def test_attempt_whose_harness_was_told_that_a_budget_is_spent_samples_no_more() -> None:
    """Whatever it asks next. What is in the record or in flight is still answered; another attempt begins anew."""
    world = World()
    world.ask([user("a")], "b")
    assert enforced(world.session) is None
    world.fail(world.open([user("c")])[1], CallFailure.BUDGET, str(TerminationReason.LOOPING))
    world.fail(world.open([user("d")])[1], CallFailure.BUDGET, str(TerminationReason.CALL_BUDGET))
    assert enforced(world.session) is TerminationReason.LOOPING
    refused = decide(world.session, asked("r9"), {})
    assert isinstance(refused, RequestError)
    assert (refused.kind, refused.reason) == ("looping", CallFailure.BUDGET)
    assert isinstance(decide(world.session, asked("r1"), {}), FromRecord)
    assert decide(world.session, asked("r9"), {"r9": in_flight("")}) == Join("r9")
    world.start(2)
    assert decide(world.session, asked("r9"), {}) == Sample(1)


def test_request_that_was_accepted_before_is_known_by_its_id() -> None:
    """It comes in also where the queue is full."""
    world = World()
    world.ask([user("a")], "b")
    world.fail(world.open([user("c")])[1], CallFailure.ENGINE_UNREACHABLE)
    assert [resent(world.session, request, {"r7": in_flight("")}) for request in ("r1", "r2", "r7", "r9")] == [True, True, True, False]


@pytest.mark.parametrize(
    ("limit", "requested", "expected"), [(None, None, 100), (None, 30, 30), (20, 30, 20), (None, 32_000, 100), (500, 1, 100)]
)
def test_answer_is_limited_by_the_run_else_by_what_is_requested_and_always_by_the_room(
    limit: int | None, requested: int | None, expected: int
) -> None:
    """A limit beyond the context is lowered, not refused."""
    assert answer_tokens(Sampling(max_tokens=limit), requested, 100) == expected


def test_logprobs_are_trusted_only_for_settings_that_the_check_proved() -> None:
    """Raw logprobs are those of temperature 1 without filters."""
    raw = LogprobRule(any_temperature=False, filters=False)
    assert raw.exact_for(Sampling())
    assert not raw.exact_for(Sampling(temperature=0.7))
    assert not raw.exact_for(Sampling(top_p=0.9))
    after = LogprobRule(any_temperature=True, filters=False)
    assert after.exact_for(Sampling(temperature=0.7))
    assert not after.exact_for(Sampling(temperature=0))
    assert not after.exact_for(Sampling(top_k=5))


def test_seeds_differ_by_session_call_and_choice_and_repeat() -> None:
    """A seeded run is repeatable without giving equal answers to equal prompts."""
    seeds = {seed_of(Sampling(seed=1), session, call, choice).seed for session in "ab" for call in (0, 1) for choice in (0, 1)}
    assert len(seeds) == 8
    assert seed_of(Sampling(seed=1), "a", 0, 0) == seed_of(Sampling(seed=1), "a", 0, 0)
    assert seed_of(Sampling(), "a", 0, 0).seed is None


def test_model_map_routes_refuses_and_defaults() -> None:
    """A name without an entry goes to the policy."""
    spec = World().spec
    assert target_of(spec, "anything") == Target(policy="policy")
    mapped = type(spec)(
        **{field: getattr(spec, field) for field in spec.__struct_fields__ if field != "models"},
        models={"small": Target(frozen="judge"), "*": Target(refuse="use `policy`")},
    )
    assert target_of(mapped, "small") == Target(frozen="judge")
    with pytest.raises(RequestError, match="use `policy`"):
        target_of(mapped, "other")
    assert targets_of(mapped) == {Target(policy="policy"), Target(frozen="judge")}


def test_images_that_nobody_sees_are_refused_by_their_place() -> None:
    """A clear 400 that names where the first one stands."""

    def request(*images: Image) -> CanonicalRequest:
        return CanonicalRequest(dialect="openai_chat", model="m", messages=(), tools=(), stream=False, requested_params={}, images=images)

    image = Image(digest="0" * 64, media_type="image/png", data=b"", path="messages[3].content[0].image_url.url")
    refused = unsupported(request(image), "it", vision=False)
    assert refused is not None
    assert refused.field == image.path
    assert unsupported(request(image), "it", vision=True) is None
    assert unsupported(request(), "it", vision=False) is None
