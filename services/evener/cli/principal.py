"""`evener principal`: draws a token for somebody."""

from evener.service.principals import Role


def principal(name: str, *, team: str, role: Role = Role.USER) -> int:
    """Draw a token for somebody, and print the entry of the file of principals.

    Parameters
    ----------
    name
        The name, which stands in logs and in the tasks that it submits.
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
