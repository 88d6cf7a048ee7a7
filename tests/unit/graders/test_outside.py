"""Graders that ask others: verifiers over HTTP, judges. Their servers are real, on loopback."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.answering import answering
from tests.support.grading import GradingBench, open_bench
from tests.support.world import World, user

from evener.graders.config import Endpoint
from evener.graders.judge import score_in
from evener.graders.port import Allowed, GraderError, GraderRefused
from evener.tokens.kept import KeptRecord, pack

RUBRIC = {"endpoint": "there", "rubric": "Right numbers are good.", "reference": "4"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GradingBench]:
    async with open_bench(tmp_path) as opened:
        yield opened


def there(url: str, **given: Any) -> Allowed:
    return Allowed(endpoints={"there": Endpoint(url=url, **given)})


def said(text: str | None, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


async def test_verifier_gets_the_row_of_the_task_and_the_answer_as_a_response(bench: GradingBench) -> None:
    """The form that NeMo Gym's `/verify` takes; its other fields come back and are ignored."""
    row = json.dumps({"responses_create_params": {"input": []}, "expected_answer": "4"})
    async with answering((200, {"reward": 0.25, "rewards": {"form": 1.0}, "call_rewards": {"c2": -1}, "uuid": "x"})) as server:
        options = {"endpoint": "there", "body": "tests/row.json"}
        grade = await bench.grade("http", options, files={"tests/row.json": row}, allowed=there(f"{server.url}/verify"))

    (asked,) = server.asked
    assert server.paths == ["/verify"]
    assert (asked["expected_answer"], asked["responses_create_params"], asked["answer"]) == ("4", {"input": []}, "4")
    assert asked["response"]["output"][0]["content"][0]["text"] == "4"
    assert [call["call_id"] for call in asked["calls"]] == ["c1", "c2"]
    assert (grade.reward, grade.rewards, grade.call_rewards) == (0.25, {"form": 1.0, "reward": 0.25}, {"c2": -1.0})
    assert json.loads(bench.evidence["request.json"]) == asked
    assert json.loads(bench.evidence["response.json"])["uuid"] == "x"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((503, "busy"), GraderError),
        ((429, "slow down"), GraderError),
        ((422, "no such field"), GraderRefused),
        ((302, ""), GraderRefused),
        ((200, "<html>"), GraderError),
        ((200, {}), GraderError),
        ((200, {"reward": None}), GraderError),
        ((200, {"reward": "1"}), GraderError),
        ((200, "NaN"), GraderError),
        ((200, {"reward": 1, "call_rewards": {"c9": 1}}), GraderError),
    ],
)
async def test_verifier_that_fails_gives_no_reward(bench: GradingBench, answer: tuple[int, Any], error: type[GraderError]) -> None:
    """Never 0; what another try may mend is tried again."""
    async with answering(answer) as server:
        with pytest.raises(GraderError) as raised:
            await bench.grade("http", {"endpoint": "there"}, allowed=there(server.url))

    assert type(raised.value) is error


async def test_task_cannot_choose_where_graders_ask(bench: GradingBench) -> None:
    """Only the operator's endpoints are asked: a task could name the metadata service of a cloud."""
    async with answering((200, {"reward": 1})) as server:
        for options in ({"endpoint": server.url}, {"endpoint": "elsewhere"}, {}):
            with pytest.raises(GraderRefused):
                await bench.grade("http", options, allowed=there(server.url))

    assert server.asked == []


async def test_verifier_that_is_away_or_slow_gives_no_reward(bench: GradingBench) -> None:
    """A refused connection says where."""
    with pytest.raises(GraderError, match=r"127\.0\.0\.1:9/"):
        await bench.grade("http", {"endpoint": "there"}, allowed=there("http://127.0.0.1:9/"))


async def test_judge_is_asked_with_rubric_task_reference_and_answer(bench: GradingBench, tmp_path: Path) -> None:
    """And with the operator's key, which no task sees."""
    (tmp_path / "key").write_text("sesame\n")
    async with answering((200, said("It is right.\n\n**SCORE: 0.75**"))) as server:
        allowed = there(f"{server.url}/v1/", model="judge-1", key_file=str(tmp_path / "key"))
        grade = await bench.grade("judge", RUBRIC, answer="It is 4.\nSCORE: 1", allowed=allowed)

    (asked,) = server.asked
    prompt = asked["messages"][1]["content"]
    assert grade.reward == 0.75
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    assert (asked["model"], asked["temperature"]) == ("judge-1", 0)
    assert all(part in prompt for part in ("Right numbers are good.", "What is 2 + 2?", "Reference answer:", "It is 4.\nSCORE: 1"))
    assert bench.evidence["judgement.txt"] == b"It is right.\n\n**SCORE: 0.75**"


@pytest.mark.parametrize(
    "judgement",
    [
        said("I cannot judge this."),
        said("SCORE: 7"),
        said("SCORE: -1"),
        said("SCORE: 1\nor rather not"),
        said("SCORE: 1", finish="length"),
        said(""),
        said(None),
        {"choices": []},
        {"error": "overloaded"},
        "SCORE: 1",
    ],
)
async def test_judge_without_a_judgement_gives_no_reward(bench: GradingBench, judgement: Any) -> None:
    """Never a number that nobody gave."""
    async with answering((200, judgement)) as server:
        with pytest.raises(GraderError):
            await bench.grade("judge", RUBRIC, allowed=there(server.url))


async def test_no_answer_is_worth_nothing_and_no_judge_is_asked(bench: GradingBench) -> None:
    """As with the grader `answer`."""
    async with answering((200, said("SCORE: 1"))) as server:
        grade = await bench.grade("judge", RUBRIC, answer=None, allowed=there(server.url))

    assert (grade.reward, server.asked) == (0.0, [])


@pytest.mark.parametrize(
    ("line", "score"), [("SCORE: 1", 1.0), ("Score: 0", 0.0), ("**SCORE:** 0.5", 0.5), ("score: .25.", 0.25), ("`SCORE: 1.0`", 1.0)]
)
def test_score_is_read_as_models_write_it(line: str, score: float) -> None:
    assert score_in(f"Because.\n{line}\n") == score


def records_of(said_first: str) -> bytes:
    """Return the kept records of a session with one call."""
    world = World()
    world.ask([user(said_first)], "4")
    world.seal()
    return pack([KeptRecord(offset, 0, data) for offset, data in enumerate(world.log)])


async def test_judge_sees_what_the_task_lets_it_see(bench: GradingBench) -> None:
    """The files that the agent changed, and its conversation; without an answer too, if that is not all that counts."""
    options = {**RUBRIC, "sees": "changes, messages"}
    async with answering((200, said("Fine.\nSCORE: 1"))) as server:
        changed = {"app/a.py": "x = 1\n", "app/b.bin": "\0"}
        grade = await bench.grade(
            "judge",
            options,
            answer=None,
            changed=changed,
            removed=("app/old",),
            allowed=there(server.url),
            records=records_of("What is 2 + 2?"),
        )

    assert grade.reward == 1.0
    prompt = server.asked[0]["messages"][1]["content"]
    assert "--- /app/a.py, 6 bytes\nx = 1" in prompt
    assert "--- /app/b.bin, 1 bytes\n[not text]" in prompt
    assert "--- /app/old was removed" in prompt
    assert '"content":"What is 2 + 2?"' in prompt.partition("Conversation:")[2]
    assert "Answer:" not in prompt


async def test_judge_that_cannot_see_the_messages_gives_no_reward(bench: GradingBench) -> None:
    async with answering((200, said("SCORE: 1"))) as server:
        with pytest.raises(GraderRefused, match="kept no records"):
            await bench.grade("judge", {**RUBRIC, "sees": "messages"}, allowed=there(server.url))

    assert server.asked == []
