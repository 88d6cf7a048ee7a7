"""`evener replay`: a record that was given up, once more."""

from pathlib import Path


async def replay(topic: str, partition: int, offset: int, *, state: Path | None = None) -> int:
    """Append the record at this place to its partition once more, after what made it unreadable was mended.

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
    from evener.cli.running import evener

    async with evener(state) as client:
        again = await client.replay(topic, partition, offset)
    print(f"{again.topic}/{again.partition}@{again.offset}")
    return 0
