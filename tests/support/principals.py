"""Principals for tests: a file of them, whose tokens are their names."""

from pathlib import Path

from evener.service.principals import digest_of


def principals_file(path: Path, *entries: str, teams: str = "") -> str:
    """Write a file of principals, each given as `NAME TEAM ROLE` with its quota, if any, as TOML behind it; return the file."""
    lines = [teams]
    for entry in entries:
        name, team, role, *quota = entry.split(maxsplit=3)
        lines += ["[[principals]]", f'name = "{name}"', f'team = "{team}"', f'role = "{role}"', f'token_sha256 = "{digest_of(name)}"']
        lines += [f"quota = {quota[0]}"] if quota else []
    path.write_text("\n".join(lines))
    return str(path)
