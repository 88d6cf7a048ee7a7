"""An engine that says nothing to one call."""

import asyncio

import pytest
from tests.support.loop import LoopTime

from evener.proto.relay import Waiting
from evener.provider_gateway.engine_handle import PAUSE_POLL_SECONDS, Silence

SECONDS = 10.0


async def test_long_silence_is_told_from_its_beginning_and_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the whole of it: a clock that takes it out counts no second twice."""
    time, told = LoopTime(monkeypatch), list[Waiting]()
    with Silence(told.append, SECONDS) as silence:
        await time.pass_by(SECONDS / 2)
        silence.heard()
        await time.pass_by(SECONDS - 1)
        assert (told, silence.is_long) == ([], False)
        await time.pass_by(1)
        await time.pass_by(PAUSE_POLL_SECONDS)
        assert [one.seconds for one in told] == pytest.approx([SECONDS, SECONDS + PAUSE_POLL_SECONDS])
        assert silence.is_long
        silence.heard()
        assert not silence.is_long
        await time.pass_by(SECONDS - 1)
    await time.pass_by(SECONDS)
    assert len(told) == 2
    await asyncio.sleep(0)
