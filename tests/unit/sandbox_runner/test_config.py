"""What a runner does where nobody configured anything."""

from evener.sandbox_runner.config import Config


def test_harness_hears_something_at_least_every_fifteen_seconds_and_headers_before_it_gives_up() -> None:
    """Clients close streams that are silent for longer; one gives up after a minute without headers."""
    config = Config()
    assert config.keep_alive_seconds <= 15
    assert config.admission_seconds <= 30
