"""How the recovery bench counts what is sampled in vain, and what is sent again without a fault."""

import json
from pathlib import Path

from proofs.bench.recovery import Arm, figures
from proofs.bench.recovery_ledger import Sampled, logged, spans
from tests.support.builders import choice

from evener.proto.sessions import CallClosed


def line(request_id: str, tokens: int, *, probe: bool = False) -> str:
    """Return a line of an engine's ledger."""
    return json.dumps({"request_id": request_id, "fed_ids": [1, 2], "sampled_ids": [7] * tokens, "probe": probe}) + "\n"


def arm(name: str, **given: float) -> Arm:
    """Return an arm of which only these counts are not zero."""
    counts = {"sent_again": 0, "moves_needed": 0, "moves_made": 0, "ledger_from": 0, "ledger_to": 0} | given
    return Arm(name=name, seconds=1.0, first_answer_seconds=7.5, waits=(7.5, 8.0, 9.0), noticed=(), **counts)  # type: ignore[arg-type]


def test_tokens_are_wasted_if_no_closed_call_holds_them(tmp_path: Path) -> None:
    """A call that is sampled again counts once as used and once as wasted, in the span in which each request ended."""
    answer = choice([7] * 10, {}, logprobs=[0.0] * 10)
    of_call = {"session_id": "s", "attempt": 1, "call_id": "c1", "request_id": "r1"}
    kept = logged([CallClosed(**of_call, choices=(answer,), answer_id="a1", answer_created=1, closed_at=1.0)])  # type: ignore[arg-type]
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(line("lost-0", 4))
    middle = ledger.stat().st_size
    with ledger.open("a") as file:
        file.write(line("c1-0", 10) + line("c1-0", 3) + line("check", 5, probe=True))

    found = spans(ledger, [0, middle, ledger.stat().st_size], kept)
    assert found == [Sampled(tokens=4, wasted=4), Sampled(tokens=13, wasted=3)]


def test_requests_sent_again_after_a_fault_are_not_undisturbed() -> None:
    """A freeze and a kill are faults; a join, a leave and a restart in good order are none."""
    arms = [arm("quiet", sent_again=1), arm("leave", sent_again=2, moves_needed=3, moves_made=4), arm("kill", sent_again=5, moves_made=1)]
    sampled = [Sampled(tokens=10, wasted=9), Sampled(tokens=10, wasted=1), Sampled(tokens=10, wasted=5)]

    told = figures(arms, sampled)
    assert told["resent_undisturbed"] == 3
    assert told["wasted_token_share"] == 0.1
    assert told["moves"] == {"needed": 3, "made": 5}
    assert (told["seconds"], told["seconds_p50"], told["seconds_max"]) == (7.5, 8.0, 9.0)
