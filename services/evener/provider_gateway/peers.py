"""What the other gateways mean for this one: how it shares engines with them, and when it leaves its partitions to them. No I/O."""

from collections.abc import Collection, Iterable, Mapping

from evener.proto.fleet import Heartbeat
from evener.service.owners import Owners


class Peers:
    """The other gateways, by their heartbeats."""

    def __init__(self, owners: Owners, instance_id: str) -> None:
        self._owners = owners
        self._instance_id = instance_id

    def others(self) -> Mapping[str, Heartbeat]:
        """Return the heartbeats of the other gateways that could take partitions, by instance id."""
        return {name: beat for name, beat in self._owners.living().items() if name != self._instance_id}

    def outreach(self, reached: frozenset[str]) -> bool:
        """Return whether another gateway reaches all that this one reaches, and more."""
        return is_outreached(reached, (beat.reaches for beat in self.others().values()))

    def share(self, limit: int) -> int:
        """Return how many calls this gateway may give an engine of which all gateways may have `limit`."""
        return share_of(limit, self._owners.held(), self._instance_id)


def is_outreached(reached: frozenset[str], by_others: Iterable[Collection[str]]) -> bool:
    """Return whether somebody reaches a strict superset. Of all that compare themselves so, the best never are: somebody always stays."""
    return any(reached < frozenset(one) for one in by_others)


def share_of(limit: int, held: Mapping[str, int], name: str) -> int:
    """Return one gateway's share of a limit: by the number of partitions that it holds, at least 1.

    The shares are whole and make up the limit together, unless more gateways need their 1 than it has places.
    """
    total = sum(held.values())
    if not held.get(name):
        return limit if total == 0 else 1
    places = {one: limit * count // total for one, count in held.items()}
    by_remainder = sorted(held, key=lambda one: (-(limit * held[one] % total), one))
    return max(1, places[name] + (name in by_remainder[: limit - sum(places.values())]))
