"""Tests of the tests: with a fault planted in the token rules, generated sessions must be found out."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.checker import check
from tests.unit.tokens.generated import STEPS, Harness
from tests.unit.tokens.toy import plain, replay

from evener.proto.arrays import length
from evener.proto.codec import encode
from evener.proto.ends import LeftOut
from evener.proto.sessions import PathPrefix
from evener.tokens import forest, place, rows, session

SESSIONS = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def found_out() -> bool:
    """Whether any of some random sessions fails its checks."""
    for seed in range(SESSIONS):
        drawn = random.Random(seed)  # noqa: S311 - a seeded test
        harness = Harness(seed)
        plan = [(drawn.choice(STEPS), drawn.randrange(4), drawn.randrange(7)) for _ in range(12)]
        try:
            trajectory = harness.play(plan)
            if check([plain(trajectory)], harness.world.ledger_lines()) or trajectory.doubts:
                return True
            if encode(replay([*harness.world.log, *harness.world.log])) != encode(trajectory):
                return True
        except (AssertionError, ValueError, KeyError, IndexError):
            return True
    return False


def changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Plant:
    """Plant a fault: replace an attribute by what `change` makes of it."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


FAULTS: dict[str, Plant] = {
    "given tokens are trained": changed(rows, "pack_uint8", lambda pack: lambda values: pack(np.ones(len(values), np.uint8))),
    "tokens are trained in every row that holds them": changed(
        rows, "_row", lambda make: lambda held, path, reasons, _, kind: make(held, path, reasons, set(), kind)
    ),
    "logprobs are off by one": changed(rows, "float32s", lambda read: lambda field: np.roll(read(field), 1)),
    "versions are off by one": changed(rows, "pack_int32", lambda pack: lambda values: pack(np.asarray(values) + 1)),
    "a cut turn is not closed": changed(place, "int32s", lambda read: lambda field: np.append(read(field), np.int32(257))),
    "the parent's answer is left out of the context": changed(
        forest.Forest, "context", lambda whole: lambda self, call: whole(self, call)[1:]
    ),
    "a shared prefix is one token too long": changed(place, "_shared_prefix", lambda share: lambda *given: _longer(share(*given))),
    "a repeated close counts again": changed(
        session.Session,
        "_close",
        lambda close: lambda self, event: close(self, event) or _count_again(self, event),
    ),
    "an earlier attempt counts as delivered": changed(
        rows._Reasons, "of_call", lambda of: lambda self, call: None if of(self, call) is LeftOut.EARLIER_ATTEMPT else of(self, call)
    ),
    "a branch is dropped in silence": changed(rows._Reasons, "trains", lambda _: lambda *_: False),
}


def _longer(prefix: PathPrefix | None) -> PathPrefix | None:
    return None if prefix is None else PathPrefix(call_id=prefix.call_id, length=prefix.length + 1)


def _count_again(held: session.Session, event: Any) -> bool:
    held.stray_tokens += sum(length(choice.sampled_ids) for choice in event.choices)
    return False


def test_without_a_fault_nothing_is_found() -> None:
    """The other tests of this file would pass for nothing otherwise."""
    assert not found_out()


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these was somebody's bug once."""
    FAULTS[fault](monkeypatch)
    assert found_out()
