"""`evener replay`: appends a dead letter again."""

from pathlib import Path


async def replay(topic: str, partition: int, offset: int, *, state: Path | None = None) -> int:
    """Append the record at this position to its partition again, after its cause was mended.

    Parameters
    ----------
    topic
        As the dead letter says.
    partition
        As the dead letter says.
    offset
        As the dead letter says.
    state
        State folder of the running Evener.
    """
    from evener.cli.connection import connect

    async with connect(state) as client:
        again = await client.replay(topic, partition, offset)
    print(f"{again.topic}/{again.partition}@{again.offset}")
    return 0
