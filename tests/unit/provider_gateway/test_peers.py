"""What the other gateways mean for one: shares of an engine's limit, and who leaves its partitions to whom."""

from hypothesis import given
from hypothesis import strategies as st

from evener.provider_gateway.partitions import is_outreached
from evener.service.owners import share_of

HELD = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 64), min_size=1)


@given(limit=st.integers(1, 512), held=HELD)
def test_shares_make_up_the_limit_and_follow_what_each_holds(limit: int, held: dict[str, int]) -> None:
    """An engine is never given more than its limit, as long as that has a place for each."""
    shares = {name: share_of(limit, held, name) for name in held}
    total = sum(held.values())

    assert min(shares.values()) >= 1
    if all(limit * count >= total for count in held.values()):
        assert sum(shares.values()) == limit
    for name, count in held.items():
        assert shares[name] >= max(1, limit * count // total)
        assert shares[name] <= limit * count // total + 1


def test_only_gateway_has_the_whole_limit() -> None:
    """Also before it holds anything; one that holds nothing beside others has a place for what it is about to get."""
    assert share_of(64, {"a": 4}, "a") == 64
    assert share_of(64, {}, "a") == 64
    assert share_of(64, {"b": 4}, "a") == 1


def test_who_reaches_less_than_another_leaves_and_the_best_stay() -> None:
    """Those who reach different things, or the same, or nothing, all stay: sessions wait for whoever comes back first."""
    reached = {"a": {"p", "q"}, "b": {"p"}, "c": set[str](), "d": {"p", "q"}, "e": {"r"}}

    def leaves(name: str) -> bool:
        return is_outreached(frozenset(reached[name]), [one for other, one in reached.items() if other != name])

    assert {name for name in reached if leaves(name)} == {"b", "c"}
    assert not is_outreached(frozenset(), [set[str](), set[str]()])
