"""What `evener audit` reads: the bus and the blob store of a configuration, and ledgers."""

import os
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from msgspec import Struct

from evener.audit.answers import read_answers
from evener.audit.audit import audit
from evener.audit.engine import EngineLedgers
from evener.audit.findings import AuditReport
from evener.audit.tasks import Scope
from evener.blobs.open import open_blobs
from evener.bus.kafka_security import KafkaSecurity
from evener.bus.read_only import open_reader
from evener.cli.config import Config
from evener.cli.moments import moment
from evener.proto.errors import ConfigError
from evener.service.config_app import load


class AuditSources(Struct, frozen=True, kw_only=True):
    """Where the log and its blobs are."""

    bus: str
    blobs: str
    security: KafkaSecurity


def scope_of(run: str | None, since: str | None, until: str | None) -> Scope:
    """Return the tasks to audit. Raises Usage."""
    now = time.time()
    return Scope(
        run_id=run,
        since=None if since is None else moment("--since", since, now),
        until=None if until is None else moment("--until", until, now),
    )


def sources_of(*, config: Path | None, bus: str | None, blobs: str | None, state: Path | None) -> AuditSources:
    """Return what the flags, the environment and the configuration file say. Raises ConfigError."""
    flags = {"--config": config, "--bus": bus, "--blobs": blobs, "--state": state}
    words = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    configured = load(Config, words, os.environ, "up")
    if "://" not in configured.blobs and not Path(configured.blobs).is_dir():
        msg = f"there is no blob store in {configured.blobs}"
        raise ConfigError(msg)
    return AuditSources(bus=configured.bus, blobs=configured.blobs, security=configured.kafka_security)


async def audited(
    sources: AuditSources, scope: Scope, ledgers: Sequence[Path], engine_ledgers: Sequence[Path], *, settled: bool
) -> AuditReport:
    """Audit. Raises EvenerError, OSError for what cannot be read."""
    async with open_reader(sources.bus, security=sources.security) as log:
        return await audit(
            log,
            open_blobs(sources.blobs),
            scope,
            answers=chain.from_iterable(map(read_answers, ledgers)),
            engine=EngineLedgers(engine_ledgers) if engine_ledgers else None,
            settled=settled,
        )
