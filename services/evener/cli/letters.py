"""What `evener dead-letters` asks for, and how it shows the answers."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from evener.cli.errors import Usage
from evener.cli.moments import moment
from evener.client.client import Client
from evener.proto.letters import LetterQuery, LetterView, ReplayedRecord, ReplayRequest, ReplayResult, parse_position
from evener.service.exits import complain

LETTER_COLUMNS: Final = ("record", "given up by", "session", "when", "why")
REPLAY_COLUMNS: Final = ("record", "result", "now at")


def query_of(filters: Mapping[str, str | None], *, replayed: bool = False) -> LetterQuery:
    """Return the query of these options by name, `since` and `until` as people write times. Raises Usage."""
    now, times = time.time(), ("since", "until")
    exact = {name: value for name, value in filters.items() if name not in times}
    moments = {name: moment(f"--{name}", told, now) for name in times if (told := filters.get(name)) is not None}
    return LetterQuery(**exact, **moments, replayed=replayed)  # type: ignore[arg-type] # by name


def replay_request(positions: Sequence[str], filters: Mapping[str, str | None], *, every: bool) -> ReplayRequest:
    """Return the request of these arguments. Raises Usage."""
    filtered = any(value is not None for value in filters.values())
    if bool(positions) + filtered + every != 1:
        msg = "name records (TOPIC/PARTITION@OFFSET), or filter, or give --all"
        raise Usage(msg)
    try:
        for position in positions:
            parse_position(position)
    except ValueError as wrong:
        raise Usage(str(wrong)) from wrong
    return ReplayRequest(positions=tuple(positions)) if positions else ReplayRequest(query=query_of(filters))


async def replay_all(client: Client, request: ReplayRequest) -> AsyncIterator[ReplayedRecord]:
    """Replay all that is wanted, in as many requests as it takes."""
    while True:
        answer = await client.replay(request.positions, request.query)
        for one in answer.replays:
            yield one
        if not answer.more:
            return
        if all(one.result is not ReplayResult.REPLAYED for one in answer.replays):
            complain(f"{answer.more} more letters: narrow the query, for example by --since")
            return


def letter_cells(letter: LetterView) -> tuple[str, ...]:
    """Return a row of the table of letters."""
    why = letter.reason if letter.replayed_at is None else f"(replayed) {letter.reason}"
    return letter.position, letter.service, letter.session, _local(letter.at), why


def replay_cells(replay: ReplayedRecord) -> tuple[str, ...]:
    """Return a row of the table of replays."""
    return replay.position, replay.result, replay.to or ""


def _local(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
