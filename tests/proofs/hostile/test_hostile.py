"""A short part of `make hostile`, with no bar for time: one Evener lives through the worst inputs of each kind, its books right."""

from typing import Final

import pytest
from proofs.hostile.__main__ import chosen
from proofs.hostile.input import Kind
from proofs.hostile.registry import INPUTS
from proofs.hostile.suite import run_all

PATIENCE: Final = 4.0
"""For a machine that does much else."""
WORST: Final = (
    r"^OpenAI Chat: 8 MB of \{\}",
    r"^Google: a wrong type in every place",
    r"^OpenAI Chat: n = 64",
    r"^Anthropic Messages: a sampled call nested",
    r"^submitted: sampling.seed = 18446744073709551616",
    r"^a tree of directories 1,100 deep",
    r"^a sparse file of 1 TB",
    r"^leaves an orphan",
    r"^exits with eight calls open",
    r"^a named pipe$",
    r"^(GET|PUT|DELETE) /(blobs|tasks|events|groups)",
    r"^POST /(tasks|dead-letters|policies|engines)",
    r"^task.toml: (100,000 levels|1,000,000 dots|a working directory)",
    r"^a sparse file of 1 TB$",
    r"^submitted: (budgets|group)",
)


async def test_an_evener_lives_through_the_worst_of_each_kind() -> None:
    """Nothing dies, nothing hangs, every answer and every end is one that is right, and nothing is lost."""
    inputs = [each for pattern in WORST for each in chosen(pattern, "")]
    run = await run_all(inputs, timed=False, patience=PATIENCE)

    assert len(inputs) >= len(WORST)
    assert {one.name: one.fault for one in run.outcomes if not one.right} == {}
    assert run.ending == ()
    assert run.books is not None
    assert run.books.faults == ()
    assert run.books.lost == 0


def test_inputs_of_all_kinds_have_names_of_their_own() -> None:
    """The figures name what fails."""
    names = [(each.kind, each.name) for each in INPUTS]

    assert len(names) == len(set(names))
    assert {each.kind for each in INPUTS} == set(Kind)
    assert len(INPUTS) > 100


def test_a_kind_that_there_is_not_is_refused() -> None:
    """A misspelt kind runs nothing, and says so."""
    with pytest.raises(ValueError, match="nosuch"):
        chosen("", "nosuch")
