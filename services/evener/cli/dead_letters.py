"""`evener dead-letters`: lists what services could not read, and appends such records again."""

from pathlib import Path

from cyclopts import App

app = App(name="dead-letters", help="List records that services could not read, or replay them.", result_action="return_value")


@app.command(name="list")
async def list_letters(
    *,
    service: str | None = None,
    topic: str | None = None,
    session: str | None = None,
    run: str | None = None,
    since: str | None = None,
    until: str | None = None,
    replayed: bool = False,
    json: bool = False,
    state: Path | None = None,
) -> int:
    """List dead letters whose records were not replayed yet, the oldest first: a table on a terminal, otherwise JSON lines.

    Parameters
    ----------
    service
        Only what this service gave up: `reconstructor`, `evaluator`, `trainer_bridge`, ...
    topic
        Only records of this topic.
    session
        Only records of this session.
    run
        Only records of this run.
    since
        Only letters since an ISO time (2026-01-31T12:00, local by default) or within a duration (90s, 30m, 2h, 7d).
    until
        Only letters before such a time.
    replayed
        Also letters whose records were replayed.
    json
        Print a JSON line for each letter, also on a terminal.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.letters import LETTER_COLUMNS, letter_cells, query_of
    from evener.cli.output import tell_each
    from evener.service.exits import complain

    filters = {"service": service, "topic": topic, "session": session, "run": run, "since": since, "until": until}
    query = query_of(filters, replayed=replayed)
    async with connect(state) as client:
        found = await client.dead_letters(query)
    tell_each(found.letters, LETTER_COLUMNS, letter_cells, json=json or None)
    if found.more:
        complain(f"{found.more} more letters: narrow the query, for example by --since")
    return 0


@app.command
async def replay(
    *positions: str,
    service: str | None = None,
    topic: str | None = None,
    session: str | None = None,
    run: str | None = None,
    since: str | None = None,
    until: str | None = None,
    all: bool = False,  # noqa: A002 - the flag's name
    json: bool = False,
    state: Path | None = None,
) -> int:
    """Append records to their partitions again, after the cause was mended. Exits with 1 if one is no longer in the log.

    A record is replayed once, however often and from wherever it is asked for.

    Parameters
    ----------
    positions
        TOPIC/PARTITION@OFFSET of each record, as `evener dead-letters list` shows it.
    service
        Those of all open letters of this service.
    topic
        Those of this topic.
    session
        Those of this session.
    run
        Those of this run.
    since
        Those of letters since an ISO time (2026-01-31T12:00, local by default) or within a duration (90s, 30m, 2h, 7d).
    until
        Those of letters before such a time.
    all
        Those of all open letters.
    json
        Print a JSON line for each record, also on a terminal.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.letters import REPLAY_COLUMNS, replay_all, replay_cells, replay_request
    from evener.cli.output import tell_each
    from evener.proto.letters import ReplayResult

    filters = {"service": service, "topic": topic, "session": session, "run": run, "since": since, "until": until}
    request = replay_request(positions, filters, every=all)
    async with connect(state) as client:
        done = [one async for one in replay_all(client, request)]
    tell_each(done, REPLAY_COLUMNS, replay_cells, json=json or None)
    return 1 if any(one.result is ReplayResult.GONE for one in done) else 0
