"""`evener principal`: draws a token for somebody."""

from evener.service.principals import Role


def principal(name: str, *, team: str, role: Role = Role.USER) -> int:
    """Generate a token for a person or a program, and print its entry for the principals file.

    Parameters
    ----------
    name
        The name, which appears in logs and in the tasks that it submits.
    team
        The team, whose tasks, sessions and groups it may see.
    role
        What it may do: a viewer reads, a user also submits, a trainer also publishes versions, an admin does everything for all teams.
    """
    import secrets
    import sys

    from evener.service.principals import entry_of

    token = secrets.token_urlsafe(32)
    print(entry_of(name, team, role, token))
    sys.stderr.write(f"The token of {name}, which is not shown again: {token}\n")
    return 0
