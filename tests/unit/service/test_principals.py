"""Principals: who a token belongs to, what a role allows, and a file that changes under a running process."""

from pathlib import Path

import pytest
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs
from tests.support.principals import principals_file
from tests.support.service_context import OPERATOR, operator

from evener.proto.errors import ConfigError
from evener.service import principals
from evener.service.auth import Secrets, control_route, principal_of
from evener.service.http import json_response
from evener.service.principals import Principals, PrincipalsUnusable, Quota, Role, entry_of

EACH = ("vera search viewer", "ulla search user", "tom search trainer", "ada core admin")


async def told(request: Request) -> Response:
    return json_response({"who": principal_of(request).name, "logged": structlog.contextvars.get_contextvars()})


def secrets(file: str) -> Secrets:
    return Secrets(operator_token=OPERATOR, capability_key=b"key", principals=Principals(file))


@pytest.mark.parametrize(
    ("token", "allowed"),
    [("vera", {"viewer"}), ("ulla", {"viewer", "user"}), ("tom", {"viewer", "user", "trainer"}), ("ada", set(Role)), (OPERATOR, set(Role))],
)
async def test_role_may_do_what_lesser_roles_may(tmp_path: Path, token: str, allowed: set[str]) -> None:
    """And a refusal says which role is needed, and which one the principal has."""
    known = secrets(principals_file(tmp_path / "principals.toml", *EACH))
    routes = [Route(f"/{role}", control_route(known, told, role), methods=["GET"]) for role in Role]

    async with operator(routes, token) as http:
        for role in Role:
            async with http.get(f"/{role}") as answer:
                assert answer.status == (200 if role in allowed else 403)
                if answer.status == 403:
                    assert f"this needs the role {role}, and {token} of team search is" in await answer.text()


async def test_unknown_token_is_nobodys(tmp_path: Path) -> None:
    """The digest that stands in the file is no token."""
    known = secrets(principals_file(tmp_path / "principals.toml", *EACH))
    for token in ("", "stranger", principals.digest_of("ada")):
        async with operator([Route("/", control_route(known, told))], token) as http, http.get("/") as answer:
            assert answer.status == 401


async def test_what_happens_in_a_request_is_logged_with_its_principal(tmp_path: Path) -> None:
    """And whoever changes something is named in a line of its own, which is not the case for reading."""
    known = secrets(principals_file(tmp_path / "principals.toml", *EACH))
    routes = [Route("/", control_route(known, told, Role.USER), methods=["GET", "POST"])]
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        async with operator(routes, "ulla") as http:
            async with http.get("/") as answer:
                assert (await answer.json())["logged"] == {"principal": "ulla", "team": "search"}
            await (await http.post("/")).read()

    (line,) = (line for line in lines if line["event"] == "request")
    assert (line["principal"], line["team"], line["method"], line["path"], line["status"]) == ("ulla", "search", "POST", "/", 200)


def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A new colleague, a token that got lost: without a restart of six services."""
    path = tmp_path / "principals.toml"
    known = Principals(principals_file(path, "ann search user"), look_seconds=0.0)
    assert known.find("bob") is None

    principals_file(tmp_path / "new.toml", "bob search viewer")
    (tmp_path / "new.toml").rename(path)

    assert known.find("ann") is None
    assert (bob := known.find("bob")) is not None
    assert bob.role is Role.VIEWER


@pytest.mark.parametrize("content", ["[[principals]]\nname = 'x'", "not toml", None])
def test_file_that_was_changed_for_the_worse_changes_nothing(tmp_path: Path, content: str | None) -> None:
    """Nobody loses access, and nobody gains it, because of a slip of the pen. The log says what is wrong."""
    path = tmp_path / "principals.toml"
    known = Principals(principals_file(path, "ann search user"), look_seconds=0.0)
    path.unlink()
    if content is not None:
        path.write_text(content)

    with capture_logs() as lines:
        assert known.find("ann") is not None
        assert known.find("ann") is not None

    assert [line["event"] for line in lines] == ["principals_not_read"]
    assert str(path) in lines[0]["error"]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("[[principals]]\nname = 'ann'\nteam = 'a'\nrole = 'boss'\ntoken_sha256 = '" + "0" * 64 + "'", "Invalid enum value 'boss'"),
        ("[[principals]]\nname = 'ann'\nteam = 'a'\nrole = 'user'\ntoken_sha256 = 'plain'", "matching regex"),
        ("[[principals]]\nname = 'ann'\nteam = 'a'\nrole = 'user'", "principal ann has no token_sha256"),
        ("[[principals]]\nnam = 'ann'", "unknown field `nam`"),
        ("[teams.a]\nsession = 3", "unknown field `session`"),
    ],
)
def test_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, content: str, wrong: str) -> None:
    """In one line, with its path."""
    path = tmp_path / "principals.toml"
    path.write_text(content)

    with pytest.raises(PrincipalsUnusable, match=f"{path}: .*{wrong}"):
        Principals(str(path))


@pytest.mark.parametrize("second", ["ann other viewer", "bob other viewer"])
def test_name_and_token_belong_to_one_principal(tmp_path: Path, second: str) -> None:
    """Otherwise the log would not say who it was."""
    file = Path(principals_file(tmp_path / "principals.toml", "ann search user", second))
    file.write_text(file.read_text().replace(principals.digest_of("bob"), principals.digest_of("ann")))

    with pytest.raises(PrincipalsUnusable, match="two principals have the"):
        Principals(str(file))


def test_drawn_entry_is_one_of_the_file(tmp_path: Path) -> None:
    """What `evener principal` prints, and a name that would break out of it."""
    path = tmp_path / "principals.toml"
    path.write_text(entry_of("ann@example.org", "search", Role.TRAINER, "hush"))

    found = Principals(str(path)).find("hush")

    assert found is not None
    assert (found.name, found.team, found.role) == ("ann@example.org", "search", Role.TRAINER)
    with pytest.raises(ConfigError, match="a principal"):
        entry_of('ann"\nrole = "admin', "search", Role.USER, "hush")


def test_quotas_are_those_of_the_principal_and_of_its_team(tmp_path: Path) -> None:
    """Somebody who left the team is bound by the team's."""
    file = principals_file(tmp_path / "p.toml", "ann search user { sessions = 3 }", "bob other user", teams="[teams.search]\nsessions = 9")
    known = Principals(file)

    assert known.quotas("ann", "search") == [("principal ann", Quota(sessions=3)), ("team search", Quota(sessions=9))]
    assert known.quotas("gone", "search") == [("team search", Quota(sessions=9))]
    assert known.quotas("ann", "other") == []
    assert known.quotas("bob", "other") == [("principal bob", Quota())]
