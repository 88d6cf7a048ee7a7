"""All cells that were asked for: each ends as a Run, whatever happens in it."""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct
from proofs.bench.bus import broker
from proofs.conformance.cases import Case, Where
from proofs.conformance.cells import run
from proofs.conformance.code import CODE
from proofs.conformance.facts import Seen
from proofs.conformance.setups import SetUp
from proofs.conformance.sites import NO_QUEUE, Site, site, six_processes
from proofs.conformance.traffic import NotCheckedError
from tokenizers import Tokenizer

from evener.cli.harness_bundles import cache
from evener.engines.embedded import default_weights
from evener.harnesses.port import HarnessMissing
from evener.harnesses.registry import harness
from evener.templates.gguf import load_tokenizer

AT_ONCE: Final = 2
WAITING_AT_ONCE: Final = 6
"""How many of the cases that only wait run at a time."""
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
    """The number of sampled tokens."""
    exit_code: int | None = None
    end: str | None = None
    note: str = ""
    """What was not as it should be, or why it is as it is."""
    seconds: float = 0.0
    at: float
    """Unix seconds."""
    code: str = ""
    """Digest of the product's code that was run."""


async def run_all(setups: Sequence[SetUp], cases: Sequence[Case]) -> list[Run]:
    """Run every cell: two set-ups at a time, a set-up's cases one after the other; those on Kafka at the end, one by one."""
    tokenizer = await asyncio.to_thread(load_tokenizer, default_weights())
    on_kafka = [case for case in cases if case.where is Where.SIX_PROCESSES]
    here = [case for case in cases if case not in on_kafka]
    runs = await _groups(setups, [case for case in here if not case.only_when_asked], tokenizer, AT_ONCE)
    runs += await _groups(setups, [case for case in here if case.only_when_asked], tokenizer, WAITING_AT_ONCE)
    return runs + await _on_kafka(setups, on_kafka, tokenizer)


async def run_one(setup: SetUp, cases: Sequence[Case], tokenizer: Tokenizer, servers: str | None = None) -> list[Run]:
    """Run a set-up's cases; those of one kind share an Evener. `servers`: of the broker, where a case needs one."""
    runs = []
    for where in Where:
        if own := [case for case in cases if case.where is where and setup.has(case.name)]:
            runs += await _together(setup, own, _opened(where, tokenizer, servers))
    return runs


async def _together(setup: SetUp, cases: Sequence[Case], opened: Callable[[Path], AbstractAsyncContextManager[Site]]) -> list[Run]:
    try:
        await harness(setup.harness).install(cache())
        with tempfile.TemporaryDirectory(prefix="evener-conformance-", ignore_cleanup_errors=True) as made:
            async with opened(Path(made)) as at:
                return [await _cell(at, setup, case) for case in cases]
    except HarnessMissing as missing:
        return [_failed(setup, case, f"not installable: {missing}") for case in cases]
    except (AssertionError, OSError, TimeoutError) as broken:
        return [_failed(setup, case, f"no Evener: {broken!r}") for case in cases]


def _opened(where: Where, tokenizer: Tokenizer, servers: str | None) -> Callable[[Path], AbstractAsyncContextManager[Site]]:
    """Return what opens an Evener in a folder."""
    match where:
        case Where.ONE_PROCESS:
            return partial(site, tokenizer=tokenizer)
        case Where.NO_QUEUE:
            return partial(site, tokenizer=tokenizer, options=NO_QUEUE)
        case Where.SIX_PROCESSES:
            assert servers is not None
            return partial(six_processes, tokenizer=tokenizer, servers=servers)


async def _groups(setups: Iterable[SetUp], cases: Sequence[Case], tokenizer: Tokenizer, at_once: int) -> list[Run]:
    room = asyncio.Semaphore(at_once)

    async def one(setup: SetUp) -> list[Run]:
        async with room:
            return await run_one(setup, cases, tokenizer)

    return [made for runs in await asyncio.gather(*map(one, setups)) for made in runs]


async def _on_kafka(setups: Sequence[SetUp], cases: Sequence[Case], tokenizer: Tokenizer) -> list[Run]:
    if not cases:
        return []
    if not (shutil.which("java") and shutil.which("mvn")):
        return [_failed(setup, case, "no broker: it needs Java and Maven") for setup in setups for case in cases if setup.has(case.name)]
    async with broker() as servers:
        return [made for setup in setups for made in await run_one(setup, cases, tokenizer, servers)]


async def _cell(at: Site, setup: SetUp, case: Case) -> Run:
    began = time.monotonic()
    try:
        found, wrong = await run(at, setup, case)
    except TimeoutError:
        ended = _failed(setup, case, f"no end within {case.limit_seconds:.0f} s")
    except NotCheckedError as unknown:
        ended = _failed(setup, case, str(unknown))
    except Exception as broken:  # noqa: BLE001 - a cell that breaks has failed, and the others go on
        ended = _failed(setup, case, repr(broken))
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
        calls=found.calls,
        sampled=found.sampled,
        exit_code=facts.exit_code if isinstance(facts.exit_code, int) else None,
        end=facts.end,
        note="; ".join(filter(None, wrong))[:NOTE_CHARACTERS] or setup.notes.get(case.name, ""),
        seconds=found.seconds,
        at=time.time(),
        code=CODE,
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
        code=CODE,
    )
