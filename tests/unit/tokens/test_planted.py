"""Tests of the tests: with a fault planted in the token rules, generated sessions must be found out."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.support.generated import STEPS, Harness
from tests.support.world import plain, replay

from evener.audit.engine_ledger import check
from evener.proto.arrays import length
from evener.proto.codec import encode
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import MatchedBy, PathPrefix
from evener.tokens import forest, history, place, rows, session

SESSIONS = 300
Plant = Callable[[pytest.MonkeyPatch], None]


def found_out() -> bool:
    """Whether any of some random sessions fails its checks."""
    for seed in range(SESSIONS):
        drawn = random.Random(seed)  # noqa: S311 - a seeded test
        harness = Harness(seed)
        plan = [(drawn.choice(STEPS), drawn.randrange(4), drawn.randrange(7)) for _ in range(12)]
        try:
            trajectory = harness.play(plan)
            if check([plain(trajectory)], harness.world.ledger_lines()) or harness.misjudged(trajectory) or trajectory.inconsistencies:
                return True
            if trajectory.accounting.excluded != harness.excluded(trajectory):
                return True
            if encode(replay([*harness.world.log, *harness.world.log])) != encode(trajectory):
                return True
        except (AssertionError, ValueError, KeyError, IndexError):
            return True
    return False


def changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Plant:
    """Plant a fault: replace an attribute by what `change` makes of it."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def _renamed(reasons: type[ExclusionReason]) -> Any:
    """The reasons, with one under a wrong name."""

    class Renamed:
        def __getattr__(self, name: str) -> ExclusionReason:
            return reasons.INCONSISTENT if name == "ORPHAN" else reasons[name]

    return Renamed()


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
        session.SessionLog,
        "_close",
        lambda close: lambda self, event: close(self, event) or _count_again(self, event),
    ),
    "an earlier attempt counts as delivered": changed(
        rows._Reasons,
        "of_call",
        lambda of: lambda self, call: None if of(self, call) is ExclusionReason.EARLIER_ATTEMPT else of(self, call),
    ),
    "an orphan is trained": changed(forest.Forest, "orphaned", lambda _: lambda *_: False),
    "a call that a retry superseded is trained": changed(
        forest.Forest,
        "orphaned",
        lambda _: lambda self, call: call.undelivered,  # noqa: ARG005 - a method
    ),
    "an answer that a retry received is an orphan": changed(forest.Forest, "deliver", lambda _: lambda *_: False),
    "one lost connection makes an orphan, whoever else received the answer": changed(
        forest.Call, "undelivered", lambda _: property(lambda self: bool(self.left))
    ),
    "an aborted answer is trained": changed(rows._Reasons, "of_segment", lambda of: lambda self, segment: _unaborted(of(self, segment))),
    "an orphan counts as inconsistent": changed(rows, "ExclusionReason", _renamed),
    "further answers of a call are orphans": changed(
        rows._Reasons,
        "of_segment",
        lambda of: lambda self, one: [ExclusionReason.ORPHAN] * len(of(self, one)) if one.choice else of(self, one),
    ),
    "a side call is trained": changed(place, "side_call_of", lambda _: lambda *_: None),
    "any answer at its place is taken for ours": changed(history, "same_answer", lambda _: lambda *_: (MatchedBy.CONTENT, True)),
    "an engine's own prompt is spliced behind the parent": changed(place, "_begins", lambda _: lambda *_: True),
    "a branch is dropped in silence": changed(rows, "_paths", lambda cut: lambda *given: cut(*given)[1:]),
}


def _longer(prefix: PathPrefix | None) -> PathPrefix | None:
    return None if prefix is None else PathPrefix(call_id=prefix.call_id, length=prefix.length + 1)


def _unaborted(reasons: list[ExclusionReason | None]) -> list[ExclusionReason | None]:
    return [None if reason is ExclusionReason.ABORTED else reason for reason in reasons]


def _count_again(held: session.SessionLog, event: Any) -> bool:
    held._strays[f"{event.call_id} again"] = sum(length(choice.sampled_ids) for choice in event.choices)
    return False


def test_without_a_fault_nothing_is_found() -> None:
    """The other tests of this file would pass for nothing otherwise."""
    assert not found_out()


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these was somebody's bug once."""
    FAULTS[fault](monkeypatch)
    assert found_out()
