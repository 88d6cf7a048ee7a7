"""A whole session under swaps of weights that end its answers: `make swaps`, short, with the self-made harness."""

from proofs.bench.swaps import Pace, of_harness
from proofs.conformance.setups import SCRIPT
from tokenizers import Tokenizer


async def test_session_under_pauses_that_end_its_answers_ends_as_it_would_have(smollm_tokenizer: Tokenizer) -> None:
    """Held and live: the same calls, files and exit; all tokens delivered, each with the version that the ledger says."""
    calm, *disturbed = await of_harness(SCRIPT, smollm_tokenizer, Pace(every_seconds=0.5, paused_seconds=0.1, token_ms=10))
    assert [row["faults"] for row in (calm, *disturbed)] == ["", "", ""]
    for row in disturbed:
        assert row["delivered"] == 1.0
        assert row["sampled"] == calm["sampled"]
        assert isinstance(row["continued"], int)
        assert row["continued"] > 0
