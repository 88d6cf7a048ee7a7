"""Determines the one number of partitions of a deployment: of what was agreed, what its topics have, and what is configured."""

from collections.abc import Iterable, Mapping
from typing import Final

from evener.proto.errors import ConfigError
from evener.proto.topics import TopicSpec

MOVES: Final = "keys would move"
ANEW: Final = "Delete all topics of the deployment, or start with another prefix"
HOW_TO_GO_ON: Final = "Set partitions = {} to go on with the first ones and leave the others empty, or start with another prefix"


def settled(
    specs: Iterable[TopicSpec], found: Mapping[str, int], *, wanted: int | None, agreed: int | None, default: int, prefix: str = ""
) -> int:
    """Return the number of partitions of partitioned topics. Raises ConfigError where a key could be in two partitions.

    `found`: the partitions of each topic that exists, by its name without the prefix. `wanted`: what is configured. None: nothing.
    `agreed`: what the deployment's first process wrote down. None: nothing yet. `default`: the number for a new bus.

    A topic may have more partitions than were agreed only if the agreed number is configured: the others then stay empty.
    """
    known = {spec: found[spec.name] for spec in specs if spec.name in found}
    partitioned = {prefix + spec.name: there for spec, there in known.items() if spec.partitioned}
    if agreed is None:
        name, count = min(partitioned.items(), key=lambda item: item[1], default=(None, wanted or default))
        if name is not None and wanted not in {None, count}:
            msg = f"topic {name} has {count} partitions, not {wanted}: {MOVES}. Set partitions = {count}, or leave it out"
            raise ConfigError(msg)
        _refuse_unequal(partitioned, count)
        return count
    if wanted not in {None, agreed}:
        msg = f"this deployment has {agreed} partitions, not {wanted}: {MOVES}. Set partitions = {agreed}, or leave it out"
        raise ConfigError(msg)
    for name, there in partitioned.items():
        if there < agreed:
            msg = f"topic {name} has {there} partitions, and this deployment {agreed}: it was recreated without its records. {ANEW}"
            raise ConfigError(msg)
        if there > agreed and wanted is None:
            msg = f"topic {name} has {there} partitions now, and this deployment {agreed}: {MOVES}. {HOW_TO_GO_ON.format(agreed)}"
            raise ConfigError(msg)
    return agreed


def _refuse_unequal(partitioned: Mapping[str, int], count: int) -> None:
    for name, there in partitioned.items():
        if there != count:
            fewest = next(name for name, there in partitioned.items() if there == count)
            msg = f"topic {name} has {there} partitions, and topic {fewest} {count}: all must have the same number. {ANEW}"
            raise ConfigError(msg)
