"""What is done to a running scripted engine: pauses, versions, weights, gates, aborts; and what it does wrongly on demand."""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.support.engines import Play
from tests.support.waiting import eventually
from tests.unit.engines.conftest import Connect
from tests.unit.engines.scripted_client import Client

from evener.engines.port import EngineError, EngineUnreachable
from evener.engines.scripted import Rule, Script, Step, Wait
from evener.proto.sessions import FinishReason

WORDS = "one two three four five six"


async def settled(waiting: Awaitable[object], seconds: float = 0.15) -> bool:
    """Return whether something ends soon."""
    done, _ = await asyncio.wait({asyncio.ensure_future(waiting)}, timeout=seconds)
    return bool(done)


async def test_a_token_waits_until_the_client_says_that_it_has_the_one_before(play: Play, client: Connect) -> None:
    """So live streaming is proven by time: nothing but the delta itself can bring the next one."""
    asking = client(await play(Script(default=Step(say=WORDS, wait="each"))))
    received: list[int] = []
    async with aclosing(asking.stream("Go")) as chunks:
        async for chunk in chunks:
            received += chunk.ids.tolist()
            assert len(chunk.ids) == 1
            await asking.post("/go")
    assert asking.tokenizer.decode(received) == WORDS


async def test_sampling_waits_before_a_token_until_its_gate_opens(play: Play, client: Connect) -> None:
    """A named gate, for one pass or for good; a pass may be given before."""
    server = await play(Script(default=Step(say=WORDS, wait=(Wait(before=3, gate="tests"),))))
    asking = client(server)
    first, second = (asyncio.ensure_future(asking.ask("Go", name)) for name in ("c1", "c2"))
    await server.waiting("tests")
    assert not await settled(asyncio.shield(first))
    await asking.post("/go?gate=tests")
    await server.recorded(1)
    assert (await asking.get("/gates"))["tests"] == {"passes": 0, "opened": False, "waiting": 1}
    server.go("tests", None)
    await asyncio.gather(first, second)
    assert len((await asking.ask("Go")).ids) == len((await first).ids)


async def test_a_pause_that_keeps_holds_tokens_and_new_calls(play: Play, client: Connect) -> None:
    """The answer goes on afterwards, and its tokens tell which weights they are of."""
    server = await play(Script(default=Step(say=WORDS * 20, per_token_ms=20)))
    asking = client(server)
    async with aclosing(asking.stream("Go")) as chunks:
        parts = [await anext(chunks)]
        assert await asking.post("/pause?mode=keep") == {"status": "paused"}
        assert await asking.get("/is_paused") == {"is_paused": True}
        late = asyncio.ensure_future(asking.ask("Late", "late"))
        while await settled(step := asyncio.ensure_future(anext(chunks)), 1.0):
            parts.append(step.result())
        held = sum(len(part.ids) for part in parts)
        await asking.post("/update_weight_version", {"new_version": "step-4"})
        assert await asking.get("/weight_info") == {"weight_version": "step-4"}
        assert not late.done()
        await asking.post("/resume")
        parts += [await step, *[part async for part in chunks]]
    versions = parts[-1].answer_versions
    assert versions is not None
    assert versions.tolist() == [0] * held + [4] * (len(versions) - held)
    assert 0 < held < len(versions)
    assert set((await late).versions.tolist()) == {4}


async def test_a_pause_that_aborts_ends_answers_with_what_they_have(play: Play, client: Connect) -> None:
    server = await play(Script(default=Step(say=WORDS, wait=(Wait(before=2),))))
    asking = client(server)
    answering = asyncio.ensure_future(asking.ask("Go"))
    await server.waiting()
    await asking.post("/pause?mode=abort")
    answer = await answering
    assert (answer.finish_reason, len(answer.ids)) == (FinishReason.ABORTED, 1)
    assert len(answer.versions) == 1
    late = asyncio.ensure_future(asking.ask("Late"))
    assert not await settled(asyncio.shield(late))
    late.cancel()
    assert [entry.aborted for entry in await server.recorded(2)] == [True, True]


async def test_a_pause_that_waits_returns_when_answers_have_ended(play: Play, client: Connect) -> None:
    server = await play(Script(default=Step(say=WORDS, per_token_ms=30)))
    asking = client(server)
    async with aclosing(asking.stream("Go")) as chunks:
        parts = [await anext(chunks)]
        await asking.post("/pause?mode=wait")
        assert len(server.ledger) == 1
        parts += [part async for part in chunks]
    assert parts[-1].finish_reason is FinishReason.STOP
    late = asyncio.ensure_future(asking.ask("Late"))
    assert not await settled(asyncio.shield(late))
    await asking.post("/resume")
    await late


async def test_one_request_is_aborted_by_its_name(play: Play, client: Connect) -> None:
    server = await play(Script(default=Step(say=WORDS, wait=(Wait(before=2),))))
    asking = client(server)
    one, other = (asyncio.ensure_future(asking.ask("Go", name)) for name in ("c1", "c2"))
    await server.waiting(count=2)
    assert await asking.post("/abort_requests", {"request_ids": ["c2"]}) == {"status": "aborted", "aborted": 1}
    assert (await other).finish_reason is FinishReason.ABORTED
    server.go()
    assert (await one).finish_reason is FinishReason.STOP


async def test_a_client_that_leaves_a_silent_engine_ends_its_sampling(play: Play, client: Connect) -> None:
    """In the minutes before the first token, and at a gate: at once, and the ledger says so."""
    server = await play(Script(default=Step(say=WORDS, delay_ms=600_000)))
    asking = client(server)
    for step, count in ((Step(say=WORDS, delay_ms=600_000), 0), (Step(say=WORDS, wait=(Wait(before=4),)), 3)):
        server.play(Script(default=step))
        before = len(server.ledger)
        leaving = asyncio.create_task(asking.ask("Go"))
        if count:
            await server.waiting()
        await eventually(lambda: server.sampling)
        leaving.cancel()
        entry = (await server.recorded(before + 1))[-1]
        assert (entry.aborted, len(entry.sampled_ids)) == (True, count)


async def test_other_weights_give_other_logprobs_and_the_same_ones_again(play: Play, client: Connect) -> None:
    """What a canary looks for; also that it finds an engine that only says that it loaded."""
    server = await play(Script(default=Step(say=WORDS)))
    asking = client(server)
    logprobs = []
    for folder in ("a", "b", "a"):
        await asking.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        logprobs.append((await asking.ask("Go")).logprobs.tolist())
    assert logprobs[0] == logprobs[2] != logprobs[1]
    server.play(Script(default=Step(say=WORDS), reload="ignore"))
    assert await asking.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "b"}}) == {"results": [None]}
    assert (await asking.ask("Go")).logprobs.tolist() == logprobs[0]
    server.play(Script(reload="refuse"))
    assert "error" in await asking.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "b"}})


async def test_given_ids_are_scored_as_they_are_sampled(play: Play, client: Connect) -> None:
    """`prompt_logprobs` and the logprobs of an answer are of one distribution."""
    asking = client(await play(Script(default=Step(say=WORDS))))
    answer = await asking.ask("Go")
    ids = asking.tokenizer.encode("Go").ids + answer.ids.tolist()
    params = {"max_tokens": 1, "prompt_logprobs": 0}
    scored = (await asking.post("/inference/v1/generate", {"token_ids": ids, "sampling_params": params}))["prompt_logprobs"]
    told = [each[str(token)]["logprob"] for each, token in zip(scored[-len(answer.ids) :], answer.ids.tolist(), strict=True)]
    assert told == pytest.approx(answer.logprobs.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (Step(say=WORDS, fail="cut", after=3), EngineUnreachable),
        (Step(say=WORDS, report="shifted"), EngineError),
        (Step(say=WORDS, report="short"), EngineError),
    ],
    ids=["cut", "shifted", "short"],
)
async def test_broken_answers_on_demand(play: Play, client: Connect, step: Step, error: type[EngineError]) -> None:
    """The adapter names them; the ledger has what was really sampled."""
    server = await play(Script(default=step))
    with pytest.raises(error):
        await client(server).ask("Go")
    (entry,) = await server.recorded(1)
    assert len(entry.sampled_ids) == len(entry.logprobs) == (3 if step.after else len(WORDS.split()) + 1)


async def test_an_abort_after_some_tokens_is_an_answer(play: Play, client: Connect) -> None:
    answer = await client(await play(Script(default=Step(say=WORDS, fail="abort", after=3)))).ask("Go")
    assert (len(answer.ids), answer.finish_reason) == (3, FinishReason.ABORTED)


async def test_an_aborted_answer_continues_where_it_stopped_whoever_says_it(play: Play, client: Connect) -> None:
    """Asked with its prompt and tokens; no rule is used up by that, and the answer after it is the next one of its conversation."""
    said = Rule(key="Go", steps=(Step(say="one two three four", fail="abort", after=2), Step(say="The next.")))
    asking = client(await play(Script(rules=(said,), default=Step(say="Nobody."))))
    first = await asking.ask("Go")
    second = await asking.ask("Go" + asking.tokenizer.decode(first.ids.tolist()))
    assert [first.finish_reason, second.finish_reason] == [FinishReason.ABORTED, FinishReason.STOP]
    assert asking.tokenizer.decode([*first.ids.tolist(), *second.ids.tolist()]) == "one two three four"
    assert await asking.text("Go") == "The next.<|im_end|>"


async def test_lies_are_told_and_the_ledger_has_the_truth(play: Play, client: Connect) -> None:
    """A wrong version, and logprobs of other weights."""
    server = await play(Script(default=Step(say=WORDS, version="step-9", report="stale")))
    asking = client(server)
    lied = await asking.ask("Go")
    server.play(Script(default=Step(say=WORDS)))
    true = await asking.ask("Go")
    first, second = await server.recorded(2)
    assert (set(lied.versions.tolist()), set(first.versions)) == ({9}, {"default"})
    assert lied.logprobs.tolist() != true.logprobs.tolist()
    assert first.logprobs == second.logprobs


async def test_speed_is_the_engines_or_the_scripts(play: Play, client: Connect) -> None:
    """Tokens a second, in events of so many tokens; silence before the first one."""
    server = await play(Script(default=Step(say=WORDS)), tokens_per_second=100, block=3)
    asking = client(server)

    async def timed(asking: Client) -> tuple[float, list[int]]:
        began = time.monotonic()
        events = await asking.post("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 200}, "stream": True})
        return time.monotonic() - began, [len(event["choices"][0]["token_ids"]) for event in events]

    seconds, sizes = await timed(asking)
    assert sizes == [3, 3, 1]
    assert seconds >= 0.06
    server.play(Script(default=Step(say=WORDS, per_token_ms=0, block=1, delay_ms=200)))
    seconds, sizes = await timed(asking)
    assert sizes == [1] * 7
    assert seconds >= 0.2


async def test_the_ledger_holds_the_newest_and_its_file_all(play: Play, client: Connect, tmp_path: Path) -> None:
    server = await play(Script(default=Step(say="Yes.")), keep=2, ledger=tmp_path / "ledger.jsonl")
    asking = client(server)
    for number in range(6):
        await asking.ask("Go", f"c{number}")
    assert [entry.request_id for entry in await server.recorded(6)] == ["c4", "c5"]
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 6
