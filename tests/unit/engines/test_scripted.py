"""The scripted engine says what its script says, and its ledger has the exact ids."""

import asyncio
import json
import math
import random
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from tests.support.engines import Play
from tests.unit.engines.conftest import Connect

from evener.engines.port import EngineError, EngineUnreachable
from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.engines.scripted.distribution import Distribution
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling


async def test_the_first_rule_that_matches_answers(play: Play, client: Connect) -> None:
    """By text, by regular expression, by the number of the call; each as often as it may; then the default."""
    rules = (Rule(match="capital", say="Paris", times=1), Rule(regex=r"\d \+ \d", say="A sum."), Rule(call=4, say="The fourth."))
    asking = client(await play(Script(rules=rules, default=Rule(say="What?"))))
    prompts = ("The capital of France", "The capital of Spain", "1 + 1", "Hello", "Hello")
    said = [await asking.text(prompt) for prompt in prompts]
    assert said == [f"{text}<|im_end|>" for text in ("Paris", "What?", "A sum.", "The fourth.", "What?")]


async def test_a_rule_looks_at_the_end_of_the_prompt_only(play: Play, client: Connect) -> None:
    """An earlier turn does not answer again."""
    asking = client(await play(Script(rules=(Rule(match="capital", tail=20, say="Paris"),), default=Rule(say="?"))))
    assert await asking.text("The capital" + " and so on" * 10) == "?<|im_end|>"


async def test_tool_calls_are_spelled_as_written(play: Play, client: Connect) -> None:
    """Arguments given as text keep their spelling, also a broken one."""
    calls = (ToolCall(name="bash", arguments={"cmd": "ls"}), ToolCall(name="bash", arguments='{"cmd":"ls'))
    asking = client(await play(Script(default=Rule(say="Let me see.", tool_calls=calls))))
    assert await asking.text("Go") == (
        'Let me see.\n<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "bash", "arguments": {"cmd":"ls}\n</tool_call><|im_end|>'
    )


async def test_ids_are_said_just_as_they_are(play: Play, client: Connect) -> None:
    """Spellings that no tokenizer would choose."""
    answer = await client(await play(Script(default=Rule(ids=(66, 67, 68), finish="length")))).ask("Go")
    assert (answer.ids.tolist(), answer.finish_reason) == ([66, 67, 68], FinishReason.LENGTH)


async def test_the_ledger_has_the_exact_ids_in_memory_on_disk_and_over_http(play: Play, client: Connect, tmp_path: Path) -> None:
    server = await play(Script(default=Rule(say="Yes.")), ledger=tmp_path / "ledger.jsonl")
    asking = client(server)
    answer = await asking.ask("Is it?", "c7")
    (entry,) = await server.recorded(1)
    assert entry.request_id == "c7"
    assert list(entry.fed_ids) == asking.tokenizer.encode("Is it?").ids
    assert list(entry.sampled_ids) == answer.ids.tolist()
    assert np.asarray(entry.logprobs, np.float32).tolist() == answer.logprobs.tolist()
    assert (set(entry.versions), entry.aborted) == ({"default"}, False)
    (line,) = (tmp_path / "ledger.jsonl").read_text().splitlines()
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ledger") as response:
        assert await response.json() == [json.loads(line)]
    assert tuple(json.loads(line)["sampled_ids"]) == entry.sampled_ids


async def test_an_aborted_answer_is_in_the_ledger_as_such(play: Play, client: Connect) -> None:
    """With what was sampled before its client left."""
    server = await play(Script(default=Rule(say="one two three four five", wait=(Wait(before=4),))))
    asking = asyncio.create_task(client(server).ask("Go"))
    await server.waiting()
    asking.cancel()
    (entry,) = await server.recorded(1)
    assert (entry.aborted, len(entry.sampled_ids)) == (True, 3)


async def test_logprobs_are_those_of_the_engines_own_distribution(play: Play, client: Connect) -> None:
    """Also of what a script says: one question, one answer, one logprob."""
    server = await play(Script(default=Rule(say="Yes.")))
    first, second = [await client(server).ask("Is it?") for _ in range(2)]
    assert first.logprobs.tolist() == second.logprobs.tolist()
    assert np.isfinite(first.logprobs).all()


@pytest.mark.parametrize(
    ("rule", "error"),
    [(Rule(fail=400), EngineError), (Rule(fail=503), EngineUnreachable), (Rule(say="Half of", fail="cut"), EngineUnreachable)],
    ids=["status", "overloaded", "cut"],
)
async def test_failures_on_demand(play: Play, client: Connect, rule: Rule, error: type[EngineError]) -> None:
    with pytest.raises(error):
        await client(await play(Script(default=rule))).ask("Go")


async def test_a_hanging_engine_says_something_and_then_nothing(play: Play, client: Connect) -> None:
    server = await play(Script(default=Rule(say="Half of it", fail="hang")))
    said = asyncio.Event()

    async def listen() -> None:
        async with aclosing(client(server).stream("Go")) as chunks:
            async for _ in chunks:
                said.set()

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(60):
        await said.wait()
    done, _ = await asyncio.wait({listening}, timeout=0.3)
    assert not done
    listening.cancel()
    (entry,) = await server.recorded(1)
    assert entry.aborted


async def test_a_script_is_replaced_over_http(play: Play, client: Connect) -> None:
    """For engines in another process; a wrong one is refused by name and changes nothing."""
    server = await play(Script(default=Rule(say="old")))
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{server.url}/script", data=b'{"defualt": {}}') as response:
            assert response.status == 400
            assert "defualt" in (await response.json())["error"]["message"]
        assert await client(server).text("Go") == "old<|im_end|>"
        async with session.post(f"{server.url}/script", data=b'{"default": {"say": "new"}}') as response:
            assert response.status == 204
    assert await client(server).text("Go") == "new<|im_end|>"


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.5), Sampling(temperature=2.0), Sampling(top_k=3), Sampling(top_p=0.6), Sampling(min_p=0.3)],
    ids=["plain", "cold", "hot", "top_k", "top_p", "min_p"],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    """The engine is honest: its draws have the probabilities that its logprobs say, after temperature and filters."""
    distribution, rng, size = Distribution(50), random.Random(1), 4000  # noqa: S311 (repeatable)
    ranked = distribution.top(distribution.after([1, 2, 3]), 50)
    assert math.fsum(math.exp(logprob) for _, logprob in ranked) == pytest.approx(1)
    weights = [math.exp((logprob - ranked[0][1]) / sampling.temperature) for _, logprob in ranked]
    kept = [weight for weight in weights if weight >= sampling.min_p][: sampling.top_k or None]
    total = math.fsum(kept)
    kept = [weight for place, weight in enumerate(kept) if math.fsum(kept[:place]) < sampling.top_p * total]
    drawn = Counter(distribution.draw(distribution.after([1, 2, 3]), sampling, rng) for _ in range(size))
    assert set(drawn) <= {token for token, _ in ranked[: len(kept)]}
    for (token, _), weight in zip(ranked, kept, strict=False):
        expected = weight / math.fsum(kept)
        assert drawn[token] / size == pytest.approx(expected, abs=5 * math.sqrt(expected / size))


def test_every_id_has_a_rank_of_its_own() -> None:
    distribution = Distribution(49)
    assert sorted(distribution.logprob(distribution.after([5]), token)[1] for token in range(49)) == list(range(1, 50))
