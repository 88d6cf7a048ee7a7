"""The people and programs that may use the control endpoints: the role, team and quota of each.

They are listed in a TOML file, `principals_file`, which is read again when it changes:

    [teams.search]                     # a quota of all of the team together; optional
    sessions = 64

    [[principals]]
    name = "ann"
    team = "search"
    role = "user"
    token_sha256 = "..."               # `evener principal ann --team search --role user` draws a token and prints this entry
    quota = { sessions = 16, tokens_per_hour = 20_000_000 }
"""

import hashlib
import time
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import structlog
from msgspec import Meta, Struct

from evener.proto.blobs import Sha256
from evener.proto.errors import ConfigError
from evener.proto.prepared import Converter

PRINCIPALS_POLL_SECONDS: Final = 1.0
"""How often the file is looked at, at most."""
NAME_FORM: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,99}$"
Ceiling = Annotated[int, Meta(ge=0)] | None

log = structlog.get_logger()


class PrincipalsUnusable(ConfigError):
    """Correct the file of principals. docs/guide.md shows its form."""


class Role(StrEnum):
    """What a principal may do. Each role may also do what those before it may."""

    VIEWER = "viewer"
    """Read what its team has: tasks, sessions, groups, scores. Everybody may read the fleet and the policies."""
    USER = "user"
    """Submit and cancel tasks of its team, record, and rebuild."""
    TRAINER = "trainer"
    """Publish versions of policies."""
    ADMIN = "admin"
    """Everything, for all teams: engines, dead letters, topics."""

    def covers(self, needed: "Role") -> bool:
        """Return whether this role may do what that role may."""
        return ROLE_RANKS.index(self) >= ROLE_RANKS.index(needed)


ROLE_RANKS: Final = tuple(Role)


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits at admission: no session starts beyond them, and running sessions continue. None: no limit."""

    sessions: Ceiling = None
    """The number of sessions that runners hold at a time."""
    tokens_per_hour: Ceiling = None
    """The number of tokens that were sampled in the sessions that ended within the last hour."""


class Principal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person or program that asks Evener for something, identified by its token."""

    name: Annotated[str, Meta(pattern=NAME_FORM)]
    team: Annotated[str, Meta(pattern=NAME_FORM)]
    role: Role
    token_sha256: Sha256 | None = None
    """The SHA-256 of the token, in lower-case hexadecimal digits. None: only of the built-in principal."""
    quota: Quota = Quota()

    def sees(self, team: str) -> bool:
        """Return whether it may see what belongs to a team."""
        return self.role is Role.ADMIN or team == self.team


OPERATOR: Final = Principal(name="operator", team="operators", role=Role.ADMIN)
"""The built-in principal, whose token is the operator's."""


class PrincipalsFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    teams: dict[str, Quota] = {}
    principals: tuple[Principal, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a name or a token that two principals have, and one without a token."""
        for field in ("name", "token_sha256"):
            values: list[str | None] = [getattr(principal, field) for principal in self.principals]
            if None in values:
                msg = f"principal {self.principals[values.index(None)].name} has no {field}"
                raise ValueError(msg)
            if twice := next((value for value in values if values.count(value) > 1), None):
                msg = f"two principals have the {field} {twice}"
                raise ValueError(msg)


_files: Final = Converter(PrincipalsFile)


class Principals:
    """The principals of a file. A file that was changed for the worse changes nothing but the log."""

    def __init__(self, file: str | None, *, look_seconds: float = PRINCIPALS_POLL_SECONDS) -> None:
        """`file` None: there are none besides the built-in one. Raises PrincipalsUnusable."""
        self._look_seconds = look_seconds
        self._path = None if file is None else Path(file).expanduser()
        self._seen = self._state_of_file()
        self._looked_at = time.monotonic()
        self._take(PrincipalsFile() if self._path is None else _read(self._path))

    def find(self, token: str) -> Principal | None:
        """Return the principal with this token."""
        self._look()
        return self._by_digest.get(digest_of(token))

    def quotas(self, principal: str, team: str) -> Sequence[tuple[str, Quota]]:
        """Return the quotas that hold for a principal's sessions, each with its holder in words."""
        self._look()
        own = self._by_name.get(principal)
        found = [(f"principal {principal}", own.quota)] if own is not None and own.team == team else []
        return [*found, (f"team {team}", self._teams[team])] if team in self._teams else found

    def _look(self) -> None:
        """Read the file again if it changed."""
        if self._path is None or time.monotonic() - self._looked_at < self._look_seconds:
            return
        self._looked_at = time.monotonic()
        if (state := self._state_of_file()) == self._seen:
            return
        self._seen = state
        try:
            self._take(_read(self._path))
        except PrincipalsUnusable as unusable:
            log.error("principals_not_read", error=str(unusable))
        else:
            log.info("principals_read", principals=len(self._by_name))

    def _take(self, content: PrincipalsFile) -> None:
        self._teams = content.teams
        self._by_name = {principal.name: principal for principal in content.principals}
        self._by_digest = {principal.token_sha256: principal for principal in content.principals}

    def _state_of_file(self) -> Any:
        """Return what differs when the file was written or replaced."""
        try:
            status = None if self._path is None else self._path.stat()
        except OSError:
            return None
        return status and (status.st_ino, status.st_mtime_ns, status.st_size)


def digest_of(token: str) -> str:
    """Return the form in which the file holds a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def entry_of(name: str, team: str, role: Role, token: str) -> str:
    """Return the entry of a principal with a token, as it stands in the file. Raises ConfigError for a name that cannot be one."""
    entry = f'[[principals]]\nname = "{name}"\nteam = "{team}"\nrole = "{role}"\ntoken_sha256 = "{digest_of(token)}"'
    try:
        _files.convert(tomllib.loads(entry))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as cause:
        msg = f"a principal {name!r} of team {team!r}: {cause}"
        raise ConfigError(msg) from cause
    return entry


def _read(path: Path) -> PrincipalsFile:
    try:
        return _files.convert(tomllib.loads(path.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as cause:
        msg = f"cannot use the principals in {path}: {getattr(cause, 'strerror', None) or cause}"
        raise PrincipalsUnusable(msg) from cause
