"""An agent that goes round in circles, whatever its harness says in between."""

import time

import pytest
from tests.support.world import user

from evener.provider_gateway.placement import looping
from evener.tokens.digests import Message

REMINDER = "<system-reminder>\nYour todo list is empty.\n</system-reminder>"


def turn(number: int, result: str = "x", *notes: Message) -> list[Message]:
    """A tool call, its result, and what the harness says behind it."""
    call = {"id": f"call{number}", "name": "run", "arguments": {"cmd": "ls"}}
    return [
        {"role": "assistant", "content": f"Attempt {number}.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
        *notes,
    ]


def test_looping_is_the_same_call_with_the_same_result_in_a_row() -> None:
    """Different ids and words do not hide it; a different result does, and so does one time too few."""
    assert looping([user("go"), *turn(1), *turn(2), *turn(3)], 3)
    assert not looping([user("go"), *turn(1), *turn(2), *turn(3, "y")], 3)
    assert not looping([user("go"), *turn(2), *turn(3)], 3)
    assert not looping([user("go"), *turn(1), *turn(2), *turn(3)], None)


@pytest.mark.parametrize(
    "note",
    [
        user(REMINDER),
        user(f"{REMINDER}\n<environment_context>\n  <cwd>/app</cwd>\n</environment_context>\n"),
        {"role": "system", "content": "The date is unknown."},
        {"role": "developer", "content": "Be brief."},
    ],
)
def test_notes_of_the_harness_do_not_hide_a_loop(note: Message) -> None:
    """Behind the last results, and behind those before."""
    assert looping([user("go"), *turn(1), *turn(2, "x", note), *turn(3, "x", note)], 3)
    assert looping([user("go"), *turn(1, "x", note), *turn(2), *turn(3)], 3)


@pytest.mark.parametrize(
    "word",
    [
        user("stop"),
        user(f"{REMINDER} go on"),
        user("<b>Again</b>, please"),
        user("<half"),
        user("<open>never closed"),
        user(""),
        {"role": "user", "content": [{"type": "image", "digest": "0", "media_type": "image/png"}]},
        {"role": "assistant", "content": "I think."},
    ],
)
def test_word_of_a_user_or_of_the_agent_begins_again(word: Message) -> None:
    assert not looping([user("go"), *turn(1), word, *turn(2), *turn(3)], 3)


def test_a_turn_of_many_results_is_read_once() -> None:
    """Each of 60,000 results was put before all others anew: two seconds, and twenty for three times as many."""
    results = [{"role": "tool", "content": "x"}] * 60_000
    began = time.process_time()
    assert not looping([user("go"), *turn(1)[:1], *results], 3)
    assert time.process_time() - began < 1.0
