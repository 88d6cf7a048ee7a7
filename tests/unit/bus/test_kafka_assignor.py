"""Dividing partitions among members: fair, complete, and with the fewest moves."""

from collections.abc import Mapping

from aiokafka.cluster import ClusterMetadata
from hypothesis import given
from hypothesis import strategies as st

from evener.bus.kafka_assignor import Claim, FewestMoves, divide

MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


def claims(held: Mapping[str, tuple[int, ...]], division: int = 1) -> dict[str, Claim]:
    return {member: Claim(division, partitions) for member, partitions in held.items()}


def moved(before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]) -> int:
    """Return how many partitions have another owner afterwards."""
    owners = {number: member for member, numbers in before.items() for number in numbers}
    return sum(owners.get(number) != member for member, numbers in after.items() for number in numbers)


def fewest(before: Mapping[str, tuple[int, ...]], members: list[str], count: int) -> int:
    """Return the least number of moves: what is left after each member kept what fits into its share, the larger shares used best."""
    share, larger = divmod(count, len(members))
    held = sorted((len(before.get(member, ())) for member in members), reverse=True)
    return count - sum(min(has, share + (rank < larger)) for rank, has in enumerate(held))


@given(count=st.integers(1, 64), first=MEMBERS, then=MEMBERS)
def test_members_come_and_go_with_the_fewest_moves(count: int, first: list[str], then: list[str]) -> None:
    """Whoever joins, leaves, crashes or comes back: everything is divided evenly, and nothing moves that need not."""
    before = divide(range(count), claims(dict.fromkeys(first, ())))
    after = divide(range(count), claims({member: before.get(member, ()) for member in then}))

    assert sorted(number for numbers in after.values() for number in numbers) == list(range(count))
    assert max(map(len, after.values())) - min(map(len, after.values())) <= 1
    assert moved(before, after) == fewest(before, then, count)


def test_latest_division_counts_where_two_claim_the_same() -> None:
    """A member that was frozen and comes back remembers what others own by now."""
    assert divide(range(4), {"frozen": Claim(3, (0, 1)), "heir": Claim(4, (0, 1, 2, 3))}) == {"frozen": (2, 3), "heir": (0, 1)}


def test_partitions_that_are_no_more_are_forgotten() -> None:
    assert divide(range(2), claims({"a": (0, 7), "b": ()})) == {"a": (0,), "b": (1,)}


def test_member_remembers_what_it_was_assigned_and_says_so_when_it_joins_again() -> None:
    """Through the bytes that the members exchange by the broker."""
    cluster, first, second = ClusterMetadata(), FewestMoves(4), FewestMoves(4)
    alone = first.assign(cluster, {"first": first.metadata(["calls"])})
    first.on_assignment(alone["first"])
    both = first.assign(cluster, {"first": first.metadata(["calls"]), "second": second.metadata(["calls"])})
    first.on_assignment(both["first"])
    second.on_assignment(both["second"])
    again = second.assign(cluster, {"first": first.metadata(["calls"]), "second": second.metadata(["calls"])})

    assert [place.partition for place in alone["first"].partitions()] == [0, 1, 2, 3]
    assert [place.partition for place in both["second"].partitions()] == [2, 3]
    assert again["first"].partitions() == both["first"].partitions()
