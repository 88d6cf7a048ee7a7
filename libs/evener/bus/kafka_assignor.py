"""Divides the partitions of a topic among the members of a consumer group, with the fewest moves.

aiokafka's own sticky assignor keeps its state at its class, so that the members of one process would mix, and learns no generation, so that
a member that comes back from a freeze would claim partitions that others own by now. This one numbers the generations itself.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from msgspec import Struct

PROTOCOL_VERSION: Final = 0
"""The version of the consumer protocol's messages."""


class Claim(Struct, frozen=True, array_like=True):
    """The last assignment of a member, and its generation. A new member claims nothing."""

    division: int = 0
    partitions: tuple[int, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_claims: Final = msgspec.msgpack.Decoder(Claim)


def divide(partitions: Collection[int], claims: Mapping[str, Claim]) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each member: equal shares, which differ by one at most, with the fewest moves.

    A partition stays with the member that claims it. If several do, the claim of the latest division counts.
    """
    owners: dict[int, str] = {}
    for member in sorted(claims, key=lambda name: (claims[name].division, name)):
        owners.update(dict.fromkeys(claims[member].partitions, member))
    held = {member: sorted(number for number in partitions if owners.get(number) == member) for member in claims}
    share, larger = divmod(len(partitions), len(claims))
    ranked = sorted(claims, key=lambda name: (-len(held[name]), name))  # the members that hold the most get the larger shares
    shares = {member: share + (rank < larger) for rank, member in enumerate(ranked)}
    kept = {member: held[member][: shares[member]] for member in ranked}
    free = sorted(set(partitions).difference(*kept.values()))
    for member in ranked:
        wanting = shares[member] - len(kept[member])
        kept[member] += free[:wanting]
        free = free[wanting:]
    return {member: tuple(sorted(kept[member])) for member in claims}


class FewestMoves(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka ships no types
    """The assignor of one member, which remembers what it was assigned. aiokafka calls its class or, as here, an instance."""

    name = "evener-fewest-moves"

    def __init__(self, count: int) -> None:
        """`count`: how many partitions the deployment agreed on. The topic may have more, which nobody uses."""
        self._count = count
        self._claim = Claim()

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Return what this member says when it joins."""
        return ConsumerProtocolMemberMetadata(PROTOCOL_VERSION, list(topics), _encoder.encode(self._claim))

    def assign(
        self, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Divide for all members, as the leader of the group."""
        del cluster
        (topic,) = {topic for member in members.values() for topic in member.subscription}
        claims = {name: _claims.decode(member.user_data) for name, member in members.items()}
        division = 1 + max(claim.division for claim in claims.values())
        divided = divide(range(self._count), claims)
        told = {name: _encoder.encode(Claim(division, given)) for name, given in divided.items()}
        return {name: ConsumerProtocolMemberAssignment(PROTOCOL_VERSION, [(topic, list(divided[name]))], told[name]) for name in members}

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember what this member was assigned."""
        self._claim = _claims.decode(assignment.user_data)
