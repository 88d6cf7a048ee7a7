"""`evener audit`: checks what Evener promises from its log."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

NOT_CHECKED = 2
"""The exit code if the log could not be checked."""

Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True)]


async def audit(
    *,
    run: str | None = None,
    since: str | None = None,
    until: str | None = None,
    ledger: Files = (),
    engine_ledger: Files = (),
    settled: bool = False,
    json: bool = False,
    config: Path | None = None,
    bus: str | None = None,
    blobs: str | None = None,
    state: Path | None = None,
) -> int:
    """Check the log: every promise of docs/audit.md, and for each breach the records that show it.

    Reads the bus and the blob store itself and writes nothing, so services may run or not. Exits with 0 if everything is as promised, with
    1 if something is not, with 2 if it could not be checked.

    Parameters
    ----------
    run
        Only the tasks of this run.
    since
        Only tasks submitted since an ISO time (2026-01-31T12:00, local by default) or within a duration (90s, 30m, 2h, 7d).
    until
        Only tasks submitted before an ISO time or a duration ago.
    ledger
        Files of what harnesses received, a line of JSON for each answer: {"kind": "answered", "answer_id": ..., "message": ...}.
    engine_ledger
        Files of what engines were fed and sampled, as `evener engine scripted --ledger` writes them.
    settled
        Nothing runs any more: tasks and sessions that have not ended are breaches.
    json
        Print one JSON object instead.
    config
        TOML file of keys, as for services. None: the file that EVENER_CONFIG names, if any.
    bus
        URL of the bus. None: as configured.
    blobs
        Folder or URL of the blob store. None: as configured.
    state
        State folder, where the embedded bus and the blobs are unless configured otherwise.
    """
    from evener.cli.audit_report import report
    from evener.cli.audited import audited, scope_of, sources_of
    from evener.proto.errors import EvenerError
    from evener.service.exits import complain

    try:
        scope = scope_of(run, since, until)
        sources = sources_of(config=config, bus=bus, blobs=blobs, state=state)
        found = await audited(sources, scope, ledger, engine_ledger, settled=settled)
    except (EvenerError, OSError) as failed:
        complain(f"not audited: {failed}")
        return NOT_CHECKED
    report(found, as_json=json)
    return 1 if found.breaches else 0
