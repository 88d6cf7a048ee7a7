"""The pass-through's ledger is the engine's own, and the checker finds what is not in it."""

import json
from pathlib import Path

import numpy as np
import pytest
from proxy import recording_proxy
from tests.support.engines import Play

from evener.engines.port import GenerateRequest
from evener.engines.scripted import Script
from evener.engines.vllm import VllmEngine
from evener.proto.spec import Sampling


async def test_the_ledger_of_the_pass_through_is_the_engines_own(tmp_path: Path, play: Play) -> None:
    """Streamed answers, with ids, logprobs and version labels."""
    engine = await play(Script())
    async with recording_proxy(engine.url, tmp_path / "ledger.jsonl") as url:
        through = VllmEngine(url)
        told = []
        for number in range(3):
            request = GenerateRequest(
                request_id=f"call{number}-0", ids=np.arange(5 + number, dtype=np.int32), sampling=Sampling(), max_tokens=12, stop_ids=(2,)
            )
            told.append([part async for part in through.generate(request)])
        await through.aclose()
        await engine.recorded(3)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    own = {entry.request_id: entry for entry in engine.ledger}

    assert [line["request_id"] for line in lines] == ["call0-0", "call1-0", "call2-0"]
    for line, parts in zip(lines, told, strict=True):
        assert line["sampled_ids"] == [int(token) for part in parts for token in part.ids]
        assert line["fed_ids"] == list(own[line["request_id"]].fed_ids)
        assert line["logprobs"] == pytest.approx(list(own[line["request_id"]].logprobs))
        assert len(line["versions"]) == len(line["sampled_ids"])
        assert not line["aborted"]
