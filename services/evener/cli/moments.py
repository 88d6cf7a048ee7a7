"""Times as people give them to commands."""

import re
from datetime import datetime
from typing import Final

from evener.cli.errors import Usage

UNIT_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def moment(option: str, told: str, now: float) -> float:
    """Return an ISO time, or a duration before `now`, in Unix seconds. Raises Usage, which names the option."""
    if duration := _DURATION.fullmatch(told):
        return now - float(duration[1]) * UNIT_SECONDS[duration[2]]
    try:
        return datetime.fromisoformat(told).timestamp()
    except (ValueError, OverflowError, OSError) as cause:
        msg = f"{option} {told!r} is neither an ISO time, such as 2026-01-31T12:00, nor a duration, such as 90s, 30m, 2h, 7d"
        raise Usage(msg) from cause
