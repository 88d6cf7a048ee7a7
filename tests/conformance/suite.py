"""All cells that were asked for: each ends as a Run, whatever happens in it."""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct
from tests.bench.bus import broker
from tests.conformance.cases import Case
from tests.conformance.cells import run
from tests.conformance.facts import Seen
from tests.conformance.setups import SetUp
from tests.conformance.sites import Site, site, six_processes
from tokenizers import Tokenizer

from evener.cli.harness_bundles import cache
from evener.engines.embedded import default_weights
from evener.harnesses.port import HarnessMissing
from evener.harnesses.registry import harness
from evener.templates.gguf import load_tokenizer

AT_ONCE: Final = 2
WAITING_AT_ONCE: Final = 6
"""Of those that only wait."""
NOTE_CHARACTERS: Final = 600

log = structlog.get_logger()


class Run(Struct, frozen=True, kw_only=True):
    """One cell."""

    set_up: str
    harness: str
    dialect: str
    version: str
    case: str
    passed: bool
    rows: int = 0
    delivered: float = 0.0
    """Share of the sampled tokens, those of side calls apart."""
    fed: float = 0.0
    """Share of the rows."""
    calls: int = 0
    sampled: int = 0
    """Tokens."""
    exit_code: int | None = None
    end: str | None = None
    note: str = ""
    """What was not as it should be, or why it is as it is."""
    seconds: float = 0.0
    at: float
    """Unix seconds."""


async def run_all(setups: Sequence[SetUp], cases: Sequence[Case]) -> list[Run]:
    """Run every cell; a set-up's cases one after the other in one Evener, two set-ups at a time."""
    tokenizer = await asyncio.to_thread(load_tokenizer, default_weights())
    quick = [case for case in cases if not case.on_kafka and not case.only_when_asked]
    waiting = [case for case in cases if case.only_when_asked]
    runs = await _groups(setups, quick, tokenizer, AT_ONCE)
    runs += await _groups(setups, waiting, tokenizer, WAITING_AT_ONCE)
    return runs + await _on_kafka(setups, [case for case in cases if case.on_kafka], tokenizer)


async def run_one(setup: SetUp, cases: Sequence[Case], tokenizer: Tokenizer, servers: str | None = None) -> list[Run]:
    """Run a set-up's cases in one Evener. `servers`: of the broker; None: on the embedded bus."""
    cases = [case for case in cases if setup.has(case.name)]
    if not cases:
        return []
    try:
        await harness(setup.harness).install(cache())
        async with _site(tokenizer, servers) as at:
            return [await _cell(at, setup, case) for case in cases]
    except HarnessMissing as missing:
        return [_failed(setup, case, f"not installable: {missing}") for case in cases]
    except (AssertionError, OSError, TimeoutError) as broken:
        return [_failed(setup, case, f"no Evener: {broken!r}") for case in cases]


@asynccontextmanager
async def _site(tokenizer: Tokenizer, servers: str | None) -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="evener-conformance-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        async with site(folder, tokenizer) if servers is None else six_processes(folder, tokenizer, servers) as at:
            yield at


async def _groups(setups: Iterable[SetUp], cases: Sequence[Case], tokenizer: Tokenizer, at_once: int) -> list[Run]:
    room = asyncio.Semaphore(at_once)

    async def one(setup: SetUp) -> list[Run]:
        async with room:
            return await run_one(setup, cases, tokenizer)

    return [made for runs in await asyncio.gather(*map(one, setups)) for made in runs]


async def _on_kafka(setups: Sequence[SetUp], cases: Sequence[Case], tokenizer: Tokenizer) -> list[Run]:
    wanted = [(setup, case) for setup in setups for case in cases if setup.has(case.name)]
    if not wanted:
        return []
    if not (shutil.which("java") and shutil.which("mvn")):
        return [_failed(setup, case, "no broker: it needs Java and Maven") for setup, case in wanted]
    async with broker() as servers:
        return [made for setup, case in wanted for made in await run_one(setup, [case], tokenizer, servers)]


async def _cell(at: Site, setup: SetUp, case: Case) -> Run:
    began = time.monotonic()
    try:
        found, wrong = await run(at, setup, case)
    except Exception as broken:  # noqa: BLE001 - a cell that breaks has failed, and the others go on
        why = f"no end within {case.limit_seconds:.0f} s" if isinstance(broken, TimeoutError) else repr(broken)
        ended = _failed(setup, case, why)
    else:
        ended = _made(setup, case, found, (*found.differs(setup.wanted(case.name)), *wrong))
    print(f"{setup.name}, {case.name}: {'passed' if ended.passed else ended.note} ({time.monotonic() - began:.0f} s)", file=sys.stderr)  # noqa: T201 - for whoever runs it
    return ended


def _made(setup: SetUp, case: Case, found: Seen, wrong: Sequence[str]) -> Run:
    facts = found.facts
    return Run(
        set_up=setup.name,
        harness=setup.harness,
        dialect=setup.dialect,
        version=found.version or "",
        case=case.name,
        passed=not wrong,
        rows=facts.rows,
        delivered=facts.delivered,
        fed=facts.fed,
        calls=facts.calls,
        sampled=found.sampled,
        exit_code=facts.exit_code,
        end=facts.end,
        note="; ".join(filter(None, wrong))[:NOTE_CHARACTERS] or setup.notes.get(case.name, ""),
        seconds=found.seconds,
        at=time.time(),
    )


def _failed(setup: SetUp, case: Case, why: str) -> Run:
    return Run(
        set_up=setup.name,
        harness=setup.harness,
        dialect=setup.dialect,
        version=harness(setup.harness).version,
        case=case.name,
        passed=False,
        note=why[:NOTE_CHARACTERS],
        at=time.time(),
    )
