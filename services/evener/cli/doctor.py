"""`evener doctor`: what is missing, and how to get it."""

from pathlib import Path


async def doctor(*, state: Path | None = None) -> int:
    """Say what this machine has and lacks. Exits with 1 if something is missing that every use needs.

    Parameters
    ----------
    state
        State folder of the Evener to use.
    """
    from evener.cli.checkup import checkup, report

    checks = await checkup(state)
    report(checks)
    return 0 if all(check.good or not check.needed for check in checks) else 1
