"""What the independent checker takes for one answer in several pieces: each given the call's context and all ids before it, no other."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.world import World, plain, user

from evener.audit.engine_ledger import check

Entry = dict[str, Any]
AT = 3
"""Where the answer is broken off."""


def broken_off(entry: Entry) -> tuple[Entry, Entry]:
    """The ledger's entries of an answer in two pieces."""
    both = ("sampled_ids", "logprobs", "versions")
    first = entry | {name: entry[name][:AT] for name in both} | {"aborted": True}
    second = entry | {name: entry[name][AT:] for name in both}
    return first, second | {"request_id": f"{entry['request_id']}.1", "fed_ids": entry["fed_ids"] + first["sampled_ids"], "aborted": False}


def faults(change: Callable[[Entry, Entry], object]) -> list[str]:
    """What is found in a session of two calls, the second of which was sampled in two pieces, after a change of these."""
    world = World()
    answer = world.ask([user("hello")], "hi")
    world.ask([user("hello"), answer, user("do the thing")], "done then")
    first, second = broken_off(world.ledger.pop())
    change(first, second)
    trajectory = world.seal()
    return check([plain(trajectory)], [json.dumps(entry) for entry in (*world.ledger, first, second)])


def test_pieces_of_one_answer_are_accepted() -> None:
    assert faults(lambda *_: None) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda _, second: second.update(fed_ids=second["fed_ids"][:-1]),
        lambda _, second: second.update(fed_ids=[*second["fed_ids"], 1]),
        lambda first, second: second.update(fed_ids=first["fed_ids"]),
        lambda first, _: first.update(aborted=False),
        lambda first, _: first.update(sampled_ids=[*first["sampled_ids"], 1]),
        lambda _, second: second.update(request_id=second["request_id"].replace("-0", "-1")),
        lambda _, second: second.update(sampled_ids=second["sampled_ids"][1:]),
        lambda _, second: second["versions"].__setitem__(0, "step-9"),
        lambda _, second: second["logprobs"].__setitem__(0, -9.0),
    ],
    ids=[
        "without the last id",
        "with one more",
        "from the context alone",
        "not ended early",
        "with an id that was dropped",
        "another answer's",
        "without its first id",
        "another version",
        "another logprob",
    ],
)
def test_anything_else_is_a_fault(change: Callable[[Entry, Entry], object]) -> None:
    assert faults(change)


@pytest.mark.parametrize("first", [True, False])
def test_answers_of_the_same_ids_are_distinguished_by_their_versions(first: bool) -> None:  # noqa: FBT001 - the two cases
    """Two answers of one call, sampled by different weights: each row is compared with its own, whichever the engine ended first."""
    world = World()
    world.ask([user("hello")], "the very same")
    (own,) = world.ledger
    other = own | {"request_id": own["request_id"].replace("-0", "-1"), "versions": ["step-9"] * len(own["versions"])}
    lines = [json.dumps(entry) for entry in ((other, own) if first else (own, other))]
    assert check([plain(world.seal())], lines) == []
