"""Engines that die, hang, break or come back: a held call's harness notices nothing, unless the wait is too long."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.sdk import NONCE, Served, served
from tests.integration.test_gateway import rebuilt
from tests.integration.wire import wire_to
from tests.support.engines import smollm
from tests.support.gateway import POLICY, Hand, gateway
from tests.support.held import Hold
from tests.support.loop import turns
from tests.support.waiting import eventually, until

from evener.engines.scripted import Rule, Script, ScriptedServer, Wait, scripted_engine
from evener.proto.fleet import EngineDraining, EngineJoined, PolicyPublished
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure, ExclusionReason
from evener.proto.relay import CAPABILITY, REQUEST_ID
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, CallUndelivered, FinishReason, SessionSealed
from evener.proto.spec import Budgets, Sampling, Target
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.provider_gateway.failures import TRANSPARENT_TRIES
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings
from evener.service.published import proven_label
from evener.templates.config import PolicyConfig
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

EIGHT = "one two three four five six seven eight"
SLOWLY = Script(
    rules=(Rule(match="slowly", say=EIGHT, per_token_ms=60), Rule(match="at the gate", say=EIGHT, wait=(Wait(before=3),))),
    default=Rule(say="Hello."),
)
HELLO = Script(default=Rule(say="Hello."))
HI = [{"role": "user", "content": "hi"}]
GATED = [{"role": "user", "content": "at the gate"}]
DOWN_SECONDS = 3.0
GIVEN_UP_SECONDS = 6.0
"""Longer than a busy machine holds back the probes of an engine."""


@pytest.fixture
async def hand(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SLOWLY, timings=getattr(request, "param", GATEWAY_TIMINGS)) as opened:
        yield opened


def engine(script: Script = SLOWLY, *, port: int = 0) -> Any:
    return scripted_engine(script, smollm(), port=port)


def slowly(number: int = 0) -> list[Any]:
    return [{"role": "user", "content": f"slowly {number}"}]


async def leave(hand: Hand, engine_id: str) -> None:
    await hand.leave_fleet(engine_id)
    await hand.fleet_is_read()


async def drain(hand: Hand, engine_id: str) -> None:
    await hand.events.send(Topic.FLEET, engine_id, EngineDraining(engine_id=engine_id, draining_at=time.time()))
    await hand.fleet_is_read()


async def noticed(hand: Hand) -> None:
    """Wait until the gateway knows that no engine answers."""
    await eventually(lambda: not hand.ready()["engine"])


async def used(hand: Hand, session_id: str) -> list[str]:
    return [event.engine_id for event in await hand.log(session_id) if isinstance(event, CallOpened)]


async def at_once(hand: Hand, server: ScriptedServer, calls: int, *, limit: int) -> int:
    """Ask so many calls of so many sessions at once, of which the engine must sample `limit` together; return how many it did at most."""
    asking = asyncio.gather(*[hand.ask(await hand.start(f"{limit}-at-once-{number}"), GATED) for number in range(calls)])
    ended, most = len(server.ledger), 0
    for number in range(calls):
        await server.waiting(count=min(limit, calls - number))
        await turns()  # for one too many
        most = max(most, server.sampling)
        server.go()
        await server.recorded(ended + number + 1)
    assert {answer.status for answer in await asking} == {200}
    return most


async def post(opened: Served, messages: Sequence[Any], *, stream: bool) -> tuple[int, bytes]:
    body = {"model": "policy", "stream": stream, "messages": messages}
    async with opened.hand.http.post(
        f"{opened.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {NONCE}"}
    ) as answer:
        return answer.status, await answer.read()


async def test_engine_that_is_down_for_three_seconds_is_not_noticed(tmp_path: Path, unused_tcp_port: int) -> None:
    """It dies under two calls, streamed and not, and comes back on its port; the gateway tries it only a few times."""
    hanging = Script(rules=(Rule(match="here", say=EIGHT, fail="hang", after=3), *SLOWLY.rules), default=SLOWLY.default)
    async with served(tmp_path, SLOWLY) as opened, AsyncExitStack() as stack:
        async with engine(hanging, port=unused_tcp_port) as dying:
            await opened.hand.join("e2", dying.url)
            await opened.hand.engines("e1", "e2")
            await leave(opened.hand, "e1")
            messages = [{"role": "user", "content": "slowly, you who are here"}]
            asking = [asyncio.create_task(post(opened, messages, stream=stream)) for stream in (False, True)]
            await eventually(lambda: dying.sampling == len(asking))
        await asyncio.sleep(DOWN_SECONDS)  # the fault itself
        assert not any(task.done() for task in asking)
        await stack.enter_async_context(engine(port=unused_tcp_port))
        async with asyncio.timeout(60):
            whole, streamed = await asyncio.gather(*asking)
        assert (whole[0], json.loads(whole[1])["choices"][0]["message"]["content"]) == (200, EIGHT)
        assert streamed[0] == 200
        assert EIGHT.encode() in streamed[1]
        assert b"error" not in streamed[1]
        tries = [event for event in await opened.hand.log("s1") if isinstance(event, CallFailed)]
        assert {event.reason for event in tries} == {CallFailure.ENGINE_UNREACHABLE}
        assert len(tries) <= 3 * len(asking)


async def test_first_call_after_an_engine_died_is_not_noticed_either(tmp_path: Path, unused_tcp_port: int) -> None:
    """Nobody knew: the call itself finds out, and is asked again."""
    async with served(tmp_path, HELLO) as opened, AsyncExitStack() as stack:
        async with engine(port=unused_tcp_port) as dying:
            await opened.hand.join("e2", dying.url)
            await opened.hand.engines("e1", "e2")
            await leave(opened.hand, "e1")
        asking = asyncio.create_task(post(opened, HI, stream=False))
        await noticed(opened.hand)
        assert not asking.done()
        await stack.enter_async_context(engine(port=unused_tcp_port))
        async with asyncio.timeout(60):
            assert (await asking)[0] == 200


async def test_engine_that_stays_away_is_reported(tmp_path: Path) -> None:
    """Once the time is up: with the engine's own silence in the log, for the attempt to be run again."""
    config, timings = Config(policies=(POLICY,), transparent_retry_seconds=1.0), GatewayTimings(engine_probe=600.0)
    async with gateway(tmp_path, SLOWLY, config=config, timings=timings) as hand:
        capability, request_id = await hand.start("s1"), new_request_id()
        async with engine() as dying:
            await hand.join("e2", dying.url)
            await hand.engines("e1", "e2")
            await leave(hand, "e1")
        assert (await hand.ask(capability, HI, request_id)).body == b""
        told = await hand.ask(capability, HI, request_id)
        assert (told.status, dict(told.headers)["retry-after"]) == (503, "5")
        assert "no engine answers" in json.loads(told.body)["error"]["message"]
        failed = [event for event in await hand.log("s1") if isinstance(event, CallFailed)]
        assert [event.reason for event in failed] == [CallFailure.ENGINE_UNREACHABLE] * 2
        assert "no engine of policy has answered for 1 s" in failed[1].detail


async def test_engine_that_answers_500_loses_the_call_to_another_unseen(hand: Hand) -> None:
    """A vLLM whose core has died, although the session's prefixes are in its cache."""
    capability = await hand.start("s1")
    await hand.ask(capability, HI)
    async with engine() as second:
        await hand.join("e2", second.url)
        await hand.engines("e1", "e2")
        hand.engine.play(Script(default=Rule(fail=500)))
        request_id = new_request_id()
        assert (await hand.ask(capability, HI, request_id)).body == b""
        assert (await hand.ask(capability, HI, request_id)).status == 200
        assert (await hand.ask(capability, HI)).status == 200
    assert await used(hand, "s1") == ["e1", "e1", "e2", "e2"]


async def test_engine_that_refused_a_call_is_asked_after_the_others(hand: Hand) -> None:
    """It is told, as the same again would not help; but the next call goes elsewhere."""
    capability = await hand.start("s1")
    async with engine() as second:
        await hand.join("e2", second.url)
        await hand.engines("e1", "e2")
        while (await used(hand, "s1"))[-1:] != ["e1"]:
            await hand.ask(capability, HI)
        hand.engine.play(Script(default=Rule(fail=404)))
        assert json.loads((await hand.ask(capability, HI)).body)["error"]["message"].endswith("the engine failed")
        assert (await hand.ask(capability, HI)).status == 200


async def test_request_that_every_engine_fails_of_is_reported_after_some_tries(hand: Hand) -> None:
    """The engine is well otherwise: the request may be what breaks it."""
    hand.engine.play(Script(rules=(Rule(match="poison", fail=500),), default=Rule(say="Hello.")))
    capability, request_id = await hand.start("s1"), new_request_id()
    poison = [{"role": "user", "content": "poison"}]
    answers = [await hand.ask(capability, poison, request_id) for _ in range(TRANSPARENT_TRIES)]
    assert [bool(answer.body) for answer in answers] == [False] * (TRANSPARENT_TRIES - 1) + [True]
    assert (await hand.ask(capability, HI)).status == 200


async def test_log_that_cannot_be_written_is_reported_after_a_while_however_many_tries_there_were(tmp_path: Path) -> None:
    """Nothing is answered from memory; when it can be written again the call goes through."""
    async with gateway(tmp_path, SLOWLY, config=Config(policies=(POLICY,), transparent_retry_seconds=6.0)) as hand:
        capability, request_ids = await hand.start("s1"), [new_request_id(), new_request_id()]
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.sqlite", isolation_level=None)) as meddling:
            meddling.execute("CREATE TRIGGER full BEFORE INSERT ON record BEGIN SELECT RAISE(ABORT, 'disk full'); END")
            answers = [await hand.ask(capability, HI, request_ids[0]) for _ in range(TRANSPARENT_TRIES + 2)]
            assert {(answer.status, answer.body) for answer in answers} == {(503, b"")}
            assert (await hand.ask(capability, HI, request_ids[1])).body == b""
            told = await until(lambda: hand.ask(capability, HI, request_ids[0]), lambda told: told.body)
            assert "the log cannot be written" in json.loads(told.body)["error"]["message"]
            meddling.execute("DROP TRIGGER full")
        assert (await hand.ask(capability, HI, request_ids[1])).status == 200


@pytest.mark.parametrize(
    "hand", [GatewayTimings(engine_probe=0.1, engine_retry=0.1, engine_given_up=2.0, engine_health=0.5)], indirect=True, ids=[""]
)
async def test_frozen_engine_gets_no_calls_and_loses_those_that_it_has(hand: Hand) -> None:
    """Its host accepts connections and says nothing: only probes find that out. When it moves again it is used again."""
    async with engine() as second, wire_to(second.url) as wire:
        await hand.join("e2", wire.url)
        await hand.engines("e1", "e2")
        await leave(hand, "e1")
        capability, request_id = await hand.start("s1"), new_request_id()
        asking = asyncio.create_task(hand.ask(capability, GATED, request_id))
        await second.waiting()
        wire.freeze()
        async with asyncio.timeout(60):
            assert (await asking).body == b""
        again = asyncio.create_task(hand.ask(capability, GATED, request_id))
        await hand.measured("evener_calls_waiting", 1)
        assert await used(hand, "s1") == ["e2"]  # of the first try
        second.go(times=None)
        wire.thaw()
        async with asyncio.timeout(60):
            assert (await again).status == 200


@pytest.mark.parametrize(
    "hand",
    [GatewayTimings(engine_probe=0.1, engine_retry=0.1, engine_given_up=GIVEN_UP_SECONDS, engine_health=0.2)],
    indirect=True,
    ids=[""],
)
async def test_engine_that_is_silent_for_a_moment_keeps_its_calls(hand: Hand) -> None:
    """Only the time since its last sign of life counts, however long ago it joined."""
    async with engine() as second, wire_to(second.url) as wire:
        await hand.join("e2", wire.url)
        await hand.engines("e1", "e2")
        await leave(hand, "e1")
        asking = asyncio.create_task(hand.ask(await hand.start("s1"), GATED))
        await second.waiting()
        await asyncio.sleep(GIVEN_UP_SECONDS)  # it has been there for so long
        wire.freeze()
        await noticed(hand)
        wire.thaw()
        second.go()
        assert (await asking).status == 200


async def test_engine_that_came_back_with_old_weights_waits_for_the_new_ones(hand: Hand) -> None:
    """A restarted process has those of its start: it is asked what it is before it is asked to sample."""
    joined = EngineJoined(engine_id="e1", kind="scripted", url=hand.engine.url, policy="policy", joined_at=7.0)
    published = PolicyPublished(policy="policy", version=3, location="/weights/3", published_at=time.time())
    await hand.events.send(Topic.FLEET, "e1", joined)
    await hand.events.send(Topic.POLICIES, "policy@3", published)
    capability, request_id = await hand.start("s1"), new_request_id()
    hand.engine.play(Script(rules=(Rule(say="x", fail="cut", times=1),), default=Rule(say="Hello.")))
    assert (await hand.ask(capability, HI, request_id)).body == b""
    asking = asyncio.create_task(hand.ask(capability, HI, request_id))
    await hand.measured("evener_calls_waiting", 1)
    assert not asking.done()
    hand.engine.publish(proven_label(published, joined))
    async with asyncio.timeout(60):
        assert (await asking).status == 200


async def test_drain_while_an_engine_is_being_checked_holds(hand: Hand) -> None:
    async with engine() as second:
        await hand.join("e2", second.url)
        await drain(hand, "e2")
        await drain(hand, "e1")
        await hand.engines("e1", "e2")
        asking = asyncio.create_task(hand.ask(await hand.start("s1"), HI))
        await hand.measured("evener_calls_waiting", 1)
        assert second.ledger == []
        await hand.join("e2", second.url)
        async with asyncio.timeout(60):
            assert (await asking).status == 200


async def test_limits_of_an_engine_that_joins_again_while_it_is_being_checked_hold(hand: Hand) -> None:
    async with engine() as second:
        await hand.join("e2", second.url)
        await hand.join("e2", second.url, max_concurrency=1)
        await hand.engines("e1", "e2")
        await leave(hand, "e1")
        assert await at_once(hand, second, 3, limit=1) == 1


async def test_engine_samples_no_more_calls_at_once_than_it_takes(hand: Hand) -> None:
    """Also when its limit changes."""
    for limit in (2, 3):
        await hand.limit(limit)
        assert await at_once(hand, hand.engine, 6, limit=limit) == limit


async def test_budget_of_calls_is_spent_to_the_last_one_where_they_wait_for_each_other(hand: Hand) -> None:
    """One engine with one place: a call that has just closed is not counted twice."""
    await hand.limit(1)
    capability = await hand.start("s1", budgets=Budgets(calls=3))
    answers = await asyncio.gather(*(hand.ask(capability, slowly(number)) for number in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 200, 200, 400, 400]
    assert sum(isinstance(event, CallClosed) for event in await hand.log("s1")) == 3


async def test_call_beyond_a_full_queue_is_not_served(tmp_path: Path) -> None:
    """The relay asks again; the log has no record of it."""
    async with gateway(tmp_path, SLOWLY, config=Config(policies=(POLICY,), queue=0, admission_timeout_seconds=0.1)) as hand:
        await hand.limit(1)
        first, second = await hand.start("s1"), await hand.start("s2")
        asking = asyncio.create_task(hand.ask(first, GATED))
        await hand.engine.waiting()
        headers = {CAPABILITY: second, REQUEST_ID: new_request_id()}
        body = {"model": "m", "messages": HI}
        async with hand.http.post(f"{hand.url}/serve/v1/chat/completions", json=body, headers=headers) as answer:
            assert (answer.status, "retry-after" in answer.headers) == (503, True)
        assert await used(hand, "s2") == []
        hand.engine.go()
        assert (await asking).status == 200
        assert (await hand.ask(second, HI)).status == 200


async def test_call_whose_relay_is_gone_without_a_word_is_aborted(tmp_path: Path) -> None:
    """The runner's machine lost power: nobody will ever ask for the answer."""
    async with gateway(tmp_path, SLOWLY, config=Config(policies=(POLICY,), disconnect_grace_seconds=1.0)) as hand:
        capability = await hand.start("s1")
        asking = asyncio.create_task(hand.ask(capability, GATED))
        await hand.engine.waiting()
        asking.cancel()
        (entry,) = await hand.engine.recorded(1)
        assert entry.aborted
        assert (await hand.until("s1", CallClosed)).choices[0].finish_reason is FinishReason.ABORTED


async def test_names_of_the_model_map_go_where_it_says(hand: Hand) -> None:
    """A frozen engine beside the policy, whose tokens are not trained, and a name that is refused."""
    async with engine(Script(default=Rule(say="I am the helper."))) as second:
        await hand.join("h1", second.url, policy=None)
        models = {"helper": Target(frozen="h1"), "none": Target(refuse="not in this run")}
        capability = await hand.start("s1", models=models)
        answers = [json.loads((await hand.ask(capability, HI, model=name)).body) for name in ("helper", "other", "none")]
        said = [answer["choices"][0]["message"]["content"] for answer in answers[:2]]
        assert said == ["I am the helper.", "Hello."]
        assert "not in this run" in answers[2]["error"]["message"]
        opened = [(event.engine_id, event.policy) for event in await hand.log("s1") if isinstance(event, CallOpened)]
        assert opened == [("h1", None), ("e1", "policy")]
        await hand.exit("s1")
        await hand.until("s1", SessionSealed)
        session = SessionLog("s1")
        for offset, event in enumerate(await hand.log("s1")):
            session.apply(event, offset=offset, record_at=0.0)
        accounting = build(session).accounting
        assert accounting.excluded == {ExclusionReason.FROZEN: len(second.ledger[0].sampled_ids)}
        assert accounting.delivered == len(hand.engine.ledger[0].sampled_ids)


@pytest.mark.parametrize("other_first", [True, False])
async def test_frozen_engine_serves_runs_of_the_policies_whose_tokenizer_it_has(
    tmp_path: Path, tiny_model: Path, *, other_first: bool
) -> None:
    """Whichever policy the gateway knows first: ids of another tokenizer would be another text there."""
    other = PolicyConfig(name="other", source=f"hf:{tiny_model}", template="chatml_tools")
    policies = (other, POLICY) if other_first else (POLICY, other)
    async with gateway(tmp_path, SLOWLY, config=Config(policies=policies)) as hand:
        await hand.join("h1", hand.engine.url, policy=None)
        models = {"helper": Target(frozen="h1")}
        assert (await hand.ask(await hand.start("s1", models=models), HI, model="helper")).status == 200
        refused = await hand.ask(await hand.start("s2", models=models, policy="other"), HI, model="helper")
        assert refused.status == 400
        message = json.loads(refused.body)["error"]["message"]
        assert message.startswith("engine h1 cannot serve a run of policy other: the tokenizers differ on 'Plain words")
        assert (await hand.until("s2", CallFailed)).reason is CallFailure.REFUSED
        assert len(hand.engine.ledger) == 1


async def test_harness_that_leaves_in_the_moment_of_the_commit_has_one_closed_call(hand: Hand, hold: Hold) -> None:
    """What is in the log is in the fold: the call is not aborted as well."""
    commit = hold("gateway.commit")
    capability, request_id = await hand.start("s1"), new_request_id()
    asking = asyncio.create_task(hand.ask(capability, HI, request_id))
    await commit.reached()
    leaving = asyncio.create_task(hand.disconnect(capability, request_id))
    await turns()
    commit.let_go()
    await leaving
    await asking
    kinds = [type(event) for event in await hand.log("s1")][1:]
    assert kinds == [CallOpened, CallClosed, CallUndelivered]


async def test_finished_answer_remains_when_its_engine_can_no_longer_name_its_weights(tmp_path: Path) -> None:
    """On the chat path versions come from the engine itself, asked before and after: then they are unknown."""
    script = Script(rules=(Rule(match="wait", say="one two three", wait=(Wait(before=2),)),), default=Rule(say="Hello."))
    async with gateway(tmp_path, script) as hand, wire_to(hand.engine.url) as wire:
        await leave(hand, "e1")
        await hand.join("e2", wire.url, kind="vllm_chat")
        await hand.engines("e2")
        capability = await hand.start("s1", sampling=Sampling(max_tokens=64))
        asking = asyncio.create_task(hand.ask(capability, [{"role": "user", "content": "wait"}]))
        await hand.engine.waiting()
        wire.breaks_at = b"/weight_info"
        hand.engine.go()
        assert (await asking).status == 200
        closed = await hand.until("s1", CallClosed)
        await hand.exit("s1")
        await hand.until("s1", SessionSealed)
        assert closed.choices[0].finish_reason is FinishReason.STOP
        accounting = (await rebuilt(hand, "s1")).accounting
        assert accounting.excluded == {ExclusionReason.VERSION_UNKNOWN: accounting.sampled}
