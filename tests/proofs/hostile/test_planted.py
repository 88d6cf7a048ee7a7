"""Tests of the tests: what dies, hangs, stops the loop, answers wrongly or loses tokens is noticed, each by its own sign."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from proofs.hostile.bodies import body, text
from proofs.hostile.dialect import CHAT
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import STOPS, WATCHED, Answered, Site
from proofs.hostile.stops import BAR_MS, Stop, read_stops
from proofs.hostile.suite import run_all

PLANTED: Final = str(Path(WATCHED).with_name("planted.py"))
STOP_MS: Final = 400.0
HANG_SECONDS: Final = 2.0
PATIENCE: Final = 4.0
"""For a machine that does much else."""


def one(name: str, act: Callable[[Site], Awaitable[None]], seconds: float = 20.0, *, timed: bool = True) -> Input:
    """Return an input."""
    return Input(kind=Kind.STREAMS, name=name, act=act, seconds=seconds, timed=timed)


async def misbehaving(site: Site, how: str) -> None:
    """Have a relay misbehave."""
    async with site.session() as session:
        CHAT.check(await session.post(CHAT.path, CHAT.text("hi"), {"x-misbehave": how}), refused=False)


async def behind_its_back(site: Site) -> None:
    """Have the engine sample for a call that no record has: as if its record were lost."""
    asked = {"request_id": f"c{'0' * 26}-0", "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5, "logprobs": 0}}
    async with aiohttp.ClientSession() as http, http.post(f"{site.engines['policy'].url}/inference/v1/generate", json=asked) as answer:
        assert answer.ok, await answer.text()


async def test_what_dies_hangs_stops_answers_wrongly_or_loses_is_noticed() -> None:
    """One after the other, and an input that is right between them stays right."""
    inputs = (
        one("right", partial(misbehaving, how="")),
        one("hangs", partial(misbehaving, how="hang"), seconds=HANG_SECONDS / PATIENCE),
        one("stops", partial(misbehaving, how="stop")),
        one("dies", partial(misbehaving, how="die")),
        body("answered", text("hi"), refused=True),
        one("loses", behind_its_back, timed=False),
    )
    report = await run_all(inputs, program=(PLANTED, STOPS), patience=PATIENCE)
    right, hangs, stops, dies, answered, loses = report.outcomes

    assert (right.died, right.hung, right.fault) == (False, False, "")
    assert (hangs.hung, hangs.died) == (True, False)
    assert f"not over after {HANG_SECONDS:g} s" in hangs.fault
    assert min(stops.stops_ms) > STOP_MS / 2 > BAR_MS
    assert len(stops.stops_ms) == 3
    assert "misbehave" in stops.where
    assert not stops.right
    assert stops.told_ms is None or stops.told_ms > STOP_MS / 2
    assert (dies.died, dies.right) == (True, False)
    assert "it ended with -11" in dies.fault
    assert answered.fault.startswith("answered: 200")
    assert loses.fault == ""
    assert report.books is not None
    assert report.books.lost == 5
    assert "5 tokens of call c00000000000000000000000000 are in no record" in report.books.faults
    assert not report.right


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (500, b'{"error": {"message": "x"}}'),
        (503, b'{"error": {"message": "x"}}'),
        (400, b"no JSON"),
        (400, b'{"error": {"message": ""}}'),
        (200, b'{"choices": []}'),
        (200, b"{}"),
    ],
)
def test_an_answer_in_no_shape_is_noticed(status: int, said: bytes) -> None:
    """A fault of ours, a refusal without a word, an answer without one."""
    with pytest.raises(Unexpected):
        CHAT.check(Answered(status=status, headers={}, body=said), refused=None)


def test_time_that_other_processes_took_is_no_stop_of_the_loop(tmp_path: Path) -> None:
    """The loop's thread was ready and had no core."""
    stop = Stop(at=1.0, ms=80, starved_ms=60, loop_cpu_ms=1, process_cpu_ms=1, where="")
    lines = '{"at": 1.0, "ms": 80, "starved_ms": 60, "loop_cpu_ms": 1, "process_cpu_ms": 1, "where": ""}\n'
    (tmp_path / "stops").write_text(lines)

    assert read_stops(tmp_path / "stops", 0.5, 1.5) == [stop]
    assert read_stops(tmp_path / "stops", 1.1, 1.5) == []
    assert stop.own_ms == 20
