"""`evener lag`: shows how many records each instance has still to read."""

from pathlib import Path


async def lag(*, state: Path | None = None) -> int:
    """Show the records that each living instance has not worked on, by topic: a table on a terminal, otherwise JSON lines.

    A line at the end says why no new session starts, if something holds them.

    Parameters
    ----------
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.lag_rows import LAG_COLUMNS, cells, rows
    from evener.cli.output import tell_each
    from evener.service.exits import complain

    async with connect(state) as client:
        fleet = await client.fleet()
    tell_each(rows(fleet), LAG_COLUMNS, cells)
    if fleet.held:
        complain(f"new sessions wait: {fleet.held}")
    return 0
