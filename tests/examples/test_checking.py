"""The check at the end of a run: the program that knows nothing of Evener reads everything that trainers get."""

import json
from pathlib import Path

import numpy as np
import pytest
from checking import check, findings, spanning
from tests.contract.test_groups import deliver, following
from tests.support.builders import group
from tests.support.scheduler import scheduler

from evener.bus.open import open_bus
from evener.client.groups import RowArrays
from evener.proto.arrays import float32s, int32s
from evener.proto.trajectories import Row

RUN = "run"


def ledger(rows: list[Row]) -> list[str]:
    """What an engine would have written down that sampled these rows as they are."""
    lines = []
    for row in rows:
        ids, call_of, logprobs = int32s(row.ids), int32s(row.call_of), float32s(row.logprobs)
        for number, call in enumerate(row.calls):
            places = np.flatnonzero(call_of == number)
            lines.append(
                json.dumps(
                    {
                        "request_id": f"{call}-0",
                        "fed_ids": ids[: places[0]].tolist(),
                        "sampled_ids": ids[places].tolist(),
                        "logprobs": logprobs[places].tolist(),
                        "versions": ["policy@0"] * len(places),
                        "aborted": False,
                    }
                )
            )
    return lines


async def checked(folder: Path, lines: list[str]) -> dict[str, object]:
    """Check a log that holds one group against a ledger."""
    (folder / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines))
    async with open_bus(f"embedded:{folder / 'bus'}", partitions=1) as bus, scheduler(bus, folder) as client, following(bus, folder):
        await deliver(bus, folder, "g")
        return await check(client, folder, ())


def rows() -> list[Row]:
    return [row for session in group(name="g") for row in session.trajectory.rows]


async def test_everything_that_trainers_get_is_read_by_the_checker(tmp_path: Path) -> None:
    found = await checked(tmp_path, ledger(rows()))

    assert (found["trajectories"], found["faults"], found["exit"]) == (4, 0, 0)
    assert found["delivered"] == [f"g.{index}" for index in range(4)]
    place = {"run_id": RUN, "partition": 0, "offset": 0}
    assert found["groups"] == [{**place, "sessions": found["delivered"], "tokens": 40, "sampled": 40, "spanning": 0}]


async def test_a_row_that_the_engine_did_not_sample_is_a_fault(tmp_path: Path) -> None:
    """A single logprob, of one token of one session."""
    lines = ledger(rows())
    entry = json.loads(lines[3])
    entry["logprobs"][1] += 0.01
    lines[3] = json.dumps(entry)
    found = await checked(tmp_path, lines)

    assert (found["trajectories"], found["faults"], found["exit"]) == (4, 1, 1)


@pytest.mark.parametrize("said", ["", "Traceback (most recent call last):\nNameError: nothing", "a fault\nand another"])
def test_a_checker_that_did_not_get_to_its_end_has_not_found_nothing(said: str) -> None:
    assert findings(said, 1) == {"trajectories": -1, "faults": -1, "exit": 1}


def test_the_checkers_last_line_counts() -> None:
    assert findings("g.0 row 0: wrong\n3 trajectories, 1 faults\n", 1) == {"trajectories": 3, "faults": 1, "exit": 1}


def test_answers_span_versions_where_trained_tokens_of_one_call_have_several() -> None:
    """What is masked does not count, nor a version that changes between two calls."""
    row = RowArrays(
        ids=np.arange(10, dtype=np.int32),
        loss_mask=np.array([0, 1, 1, 0, 1, 1, 0, 1, 1, 0], np.uint8),
        logprobs=np.zeros(10, np.float32),
        versions=np.array([-1, 3, 4, -1, 4, 4, -1, 5, 5, 6], np.int32),
        call_of=np.array([-1, 0, 0, -1, 1, 1, -1, 2, 2, 2], np.int32),
        event=rows()[0],
    )

    assert spanning(row) == 1
