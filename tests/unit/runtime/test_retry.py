"""Pauses between tries."""

from itertools import islice

from evener.runtime.retry import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    """However many tries something that stays away has had: a double float has no 2 ** 1024."""
    pauses = Backoff(1.0, 60.0)

    assert [pauses.seconds(failures) for failures in (1, 2, 3, 9, 5000)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert list(islice(Backoff(0.5, 10.0), 7)) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
