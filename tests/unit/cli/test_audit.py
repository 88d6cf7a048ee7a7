"""`evener audit`, as a user gives it: exit codes, what it prints, and where it looks."""

import json
from pathlib import Path

import msgspec
from tests.support.commands import run as evener
from tests.support.one_task import Written, one_task, write
from tests.support.world import World, user

from evener.blobs.open import open_blobs
from evener.bus.embedded import open_embedded
from evener.bus.port import Bus
from evener.proto.topics import Topic


async def written(bus: Bus, state: Path) -> tuple[World, list[Written]]:
    """Write a task of one session."""
    world = World()
    world.ask([user("hi")], "hello")
    world.seal()
    blobs = open_blobs(str(state / "blobs"))
    story = await one_task(world, blobs)
    await write(bus, blobs, story)
    return world, story


async def test_log_beside_the_process_that_has_it_open_is_audited_with_ledgers(tmp_path: Path) -> None:
    """And so is what that process leaves."""
    answers, engine = tmp_path / "answers.jsonl", tmp_path / "engine.jsonl"
    answered = {"kind": "answered", "answer_id": "chatcmpl-ac1", "message": {"role": "assistant", "content": "hello"}}
    answers.write_text(json.dumps({"kind": "began", "pid": 7}) + "\n" + json.dumps(answered) + "\n")
    given = ("--state", str(tmp_path), "--ledger", str(answers), "--engine-ledger", str(engine), "--settled")
    async with open_embedded(tmp_path / "bus") as bus:
        world, _ = await written(bus, tmp_path)
        engine.write_text("".join(f"{line}\n" for line in world.ledger_lines()))
        code, out, _ = evener("audit", *given, "--json")
    found = msgspec.json.decode(out)
    assert (code, found["breaches"], found["sessions"], found["checked"]["I1"], found["checked"]["I11"]) == (0, [], 1, 1, 1)
    code, out, _ = evener("audit", *given)
    assert (code, "1 tasks, 1 sessions, 1 calls, 1 groups" in out) == (0, True)


async def test_breach_is_shown_with_its_records_and_exits_with_1(tmp_path: Path) -> None:
    async with open_embedded(tmp_path / "bus") as bus:
        _, story = await written(bus, tmp_path)
        await write(bus, open_blobs(str(tmp_path / "blobs")), [one for one in story if one.topic is Topic.MERGED])
    code, out, _ = evener("audit", "--state", str(tmp_path))
    assert code == 1
    assert "I3  t: its group ended 2 times  tasks/0@1, trajectories.merged/" in out
    assert "1 tasks, 1 sessions, 1 calls, 1 groups" in out


def test_log_that_cannot_be_checked_exits_with_2_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    for words, says in (
        (("--state", str(tmp_path / "none")), "there is no blob store in"),
        (("--state", str(tmp_path)), "there is no bus in"),
        (("--state", str(tmp_path), "--bus", "mysql://x"), "is neither embedded:FOLDER nor"),
        (("--state", str(tmp_path), "--since", "yesterday"), "--since 'yesterday' is neither"),
    ):
        code, out, errors = evener("audit", *words)
        assert (code, out) == (2, ""), errors
        assert says in errors
    assert not (tmp_path / "bus").exists()


async def test_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text("no JSON\n")
    async with open_embedded(tmp_path / "bus") as bus:
        await written(bus, tmp_path)
    for flag, says in (("--ledger", "is not an entry of a harness's ledger"), ("--engine-ledger", "is not an entry of an engine's ledger")):
        code, _, errors = evener("audit", "--state", str(tmp_path), flag, str(ledger))
        assert code == 2
        assert says in errors
