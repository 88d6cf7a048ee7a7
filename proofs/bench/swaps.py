"""`python -m proofs.bench.swaps [--only A,B]`: weights are swapped under answers of five seconds, and the swaps end them.

An outside trainer pauses the engine every two seconds as vLLM does by default (`/pause`: mode `abort`), loads other weights under
another label, and resumes. Three real CLIs work meanwhile, with answers that are held and live; each also works once undisturbed, and has
to end just so in the others. Every row is checked against the engine's ledger. Leaves outputs/swaps.json.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct, structs
from proofs.conformance.__main__ import named
from proofs.conformance.cases import ANSWER, WORDS, Case, calls_of
from proofs.conformance.cells import run
from proofs.conformance.facts import Seen
from proofs.conformance.setups import SETUPS, SetUp
from proofs.conformance.sites import site
from proofs.figures import Row, report
from tokenizers import Tokenizer

from evener.cli.harness_bundles import cache
from evener.engines.embedded import default_weights
from evener.engines.scripted import LedgerEntry, Rule, Script
from evener.engines.scripted.script import Step
from evener.harnesses.registry import harness
from evener.proto.spec import Streaming
from evener.templates.gguf import load_tokenizer

TARGET: Final = "swaps"
HARNESSES: Final = ("pi chat", "codex", "claude_code lean")
TURNS: Final = 3
WORDS_A_TURN: Final = 50
DELIVERED: Final = 0.99
"""The least share of the sampled tokens that must be delivered."""


class Pace(Struct, frozen=True, kw_only=True):
    """How fast answers come, and how often they are ended."""

    every_seconds: float = 2.0
    paused_seconds: float = 0.3
    token_ms: float = 50.0
    """An answer of some 100 tokens takes 5 s."""


def long_turns(setup: SetUp, token_ms: float) -> Script:
    """Return three tool turns with a long text each, and the answer."""
    text = WORDS.split()
    said = [" ".join(text[(7 * turn + word) % len(text)] for word in range(WORDS_A_TURN)) for turn in range(TURNS + 1)]
    turns = [Step(say=each, tool_calls=(call,), per_token_ms=token_ms) for each, call in zip(said, calls_of(setup)[:TURNS], strict=False)]
    last = Step(say=f"{said[-1]} {ANSWER}", per_token_ms=token_ms)
    return Script(rules=(Rule(match="conformance case", tail=0, steps=(*turns, last)),), default=Step(say="I do not know this turn."))


def case_of(streaming: Streaming, token_ms: float) -> Case:
    """Return a session of such turns."""
    script = partial(long_turns, token_ms=token_ms)
    return Case(name=f"swaps_{streaming.value}", short="", about="", script=script, streaming=streaming, limit_seconds=300.0)


class Swaps(Struct):
    """The changes made to an engine."""

    count: int = 0


@asynccontextmanager
async def swapping(engine_url: str, pace: Pace) -> AsyncIterator[Swaps]:
    """Swap the weights again and again while the block runs."""
    done = Swaps()

    async def swap(http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(pace.every_seconds - pace.paused_seconds)
            await _post(http, engine_url, "/pause?mode=abort")
            await asyncio.sleep(pace.paused_seconds)
            done.count += 1
            weights = {"method": "reload_weights", "kwargs": {"weights_path": f"/weights/{done.count}"}}
            await _post(http, engine_url, "/collective_rpc", weights)
            await _post(http, engine_url, "/update_weight_version", {"new_version": f"step-{done.count}"})
            await _post(http, engine_url, "/resume")

    async with aiohttp.ClientSession() as http:
        task = asyncio.create_task(swap(http))
        try:
            yield done
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await _post(http, engine_url, "/resume")


async def _post(http: aiohttp.ClientSession, url: str, path: str, body: object = None) -> None:
    async with http.post(url + path, json=body) as answer:
        answer.raise_for_status()


async def of_harness(setup: SetUp, tokenizer: Tokenizer, pace: Pace = Pace()) -> list[Row]:  # noqa: B008 (frozen)
    """Return the figures of a CLI: undisturbed, then disturbed, held and live."""
    await harness(setup.harness).install(cache())
    with tempfile.TemporaryDirectory(prefix="evener-swaps-", ignore_cleanup_errors=True) as made:
        async with site(Path(made), tokenizer) as at:
            calm, wrong = await run(at, setup, case_of(Streaming.BUFFERED, token_ms=0.0))
            rows = [_row(setup, "undisturbed", calm, calm, wrong=wrong, entries=at.engine.ledger, swaps=0)]
            for streaming in Streaming:
                began = len(at.engine.ledger)
                async with swapping(at.engine.url, pace) as swaps:
                    found, wrong = await run(at, setup, case_of(streaming, pace.token_ms))
                entries = at.engine.ledger[began:]
                rows.append(_row(setup, streaming.value, found, calm, wrong=wrong, entries=entries, swaps=swaps.count))
    return rows


def _row(setup: SetUp, how: str, found: Seen, calm: Seen, *, wrong: Sequence[str], entries: Sequence[LedgerEntry], swaps: int) -> Row:
    alike = structs.replace(found.facts, delivered=calm.facts.delivered, aborted=calm.facts.aborted)
    faults = [*structs.replace(found, facts=alike).differs(calm.facts), *wrong]
    if found.facts.delivered < DELIVERED or found.sampled != calm.sampled:
        faults.append(f"{found.facts.delivered:.1%} delivered of {found.sampled} sampled tokens, undisturbed {calm.sampled}")
    return {
        "harness": f"{setup.harness} {found.version or ''}".strip(),
        "answers_are": how,
        "swaps": swaps,
        "answers": found.calls,
        "continued": sum(entry.aborted and bool(entry.sampled_ids) for entry in entries),
        "sampled": found.sampled,
        "delivered": found.facts.delivered,
        "versions": len(_labels(entries)),
        "seconds": found.seconds,
        "faults": "; ".join(faults),
    }


def _labels(entries: Sequence[LedgerEntry]) -> set[str]:
    return {label for entry in entries for label in entry.versions}


async def measure(setups: Sequence[SetUp]) -> list[Row]:
    """Return the figures of all CLIs, which work side by side."""
    tokenizer = await asyncio.to_thread(load_tokenizer, default_weights())
    parts = await asyncio.gather(*[of_harness(setup, tokenizer) for setup in setups])
    return [row for rows in parts for row in rows]


def main() -> int:
    """Return the exit status: 1 if a session did not end as it does undisturbed, or its tokens were not delivered."""
    parser = argparse.ArgumentParser(prog="python -m proofs.bench.swaps")
    parser.add_argument("--only", default=",".join(HARNESSES), help="set-ups of the conformance suite, with commas between")
    rows = asyncio.run(measure(named(SETUPS, parser.parse_args().only, "set-up")))
    report(TARGET, f"Weights swapped every {Pace().every_seconds:g} s, by pauses that end all answers", rows)
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
