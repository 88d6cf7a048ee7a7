"""The operator's token, and capabilities that open one session."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from starlette.requests import Request

from evener.proto.errors import ConfigError
from evener.service.auth import Capability, CapabilityRefused, Secrets, load_secrets, open_capability, seal_capability
from evener.service.principals import OPERATOR, Principal

SECRETS = Secrets(operator_token="operator", capability_key=b"key")
CAPABILITY = Capability(session_id="t.0", attempt=1, start_id="s1", partition=0, offset=7, expires_at=time.time() + 86_400)


def test_capability_opens_what_it_was_sealed_for() -> None:
    """URL-safe text: it travels in a header or a path."""
    text = seal_capability(SECRETS, CAPABILITY)

    assert open_capability(SECRETS, text) == CAPABILITY
    assert text.replace(".", "").replace("-", "").replace("_", "").isalnum()


def test_capability_signed_with_another_key_is_refused() -> None:
    """Another deployment's opens nothing here."""
    forged = seal_capability(Secrets(operator_token="operator", capability_key=b"other"), CAPABILITY)

    with pytest.raises(CapabilityRefused, match="wrong signature"):
        open_capability(SECRETS, forged)


def test_changed_capability_is_refused() -> None:
    """The signature covers every field."""
    _, _, signature = seal_capability(SECRETS, CAPABILITY).partition(".")
    other, _, _ = seal_capability(SECRETS, msgspec.structs.replace(CAPABILITY, session_id="t.1")).partition(".")

    with pytest.raises(CapabilityRefused, match="wrong signature"):
        open_capability(SECRETS, f"{other}.{signature}")


@pytest.mark.parametrize("text", ["", ".", "a.b.c", "!.!", "\u00e9.\u00e9", "evk123"])
def test_damaged_capability_is_refused(text: str) -> None:
    """Whatever a stranger sends, the answer is the same kind of no."""
    with pytest.raises(CapabilityRefused):
        open_capability(SECRETS, text)


def test_capability_dies_with_its_time() -> None:
    """At most as long as a session may live."""
    text = seal_capability(SECRETS, CAPABILITY)

    with pytest.raises(CapabilityRefused, match="expired"):
        open_capability(SECRETS, text, now=CAPABILITY.expires_at + 1)


@pytest.mark.parametrize(
    ("header", "good"), [(b"Bearer operator", True), (b"operator", True), (b"Bearer op", False), (b"", False), (None, False)]
)
def test_operators_token(header: bytes | None, good: bool) -> None:  # noqa: FBT001 - what is expected
    """Whole, or not at all."""
    headers = [] if header is None else [(b"authorization", header)]

    assert (SECRETS.principal(Request({"type": "http", "headers": headers})) is OPERATOR) is good


@pytest.mark.parametrize(("host", "principal"), [("127.0.0.1", OPERATOR), ("::1", OPERATOR), ("192.0.2.7", None)])
def test_token_that_was_drawn_beside_principals_is_for_loopback_alone(tmp_path: Path, host: str, principal: Principal | None) -> None:
    """Whoever reads the state folder of one pod could otherwise do everything from anywhere."""
    file = tmp_path / "principals.toml"
    file.touch()
    drawn = load_secrets(tmp_path / "state", principals_file=str(file))
    request = Request({"type": "http", "headers": [(b"authorization", drawn.operator_token.encode())], "client": (host, 1)})

    assert drawn.principal(request) is principal


def test_secrets_are_drawn_once_and_kept_for_their_owner(tmp_path: Path) -> None:
    """The second start reads what the first drew."""
    first = load_secrets(tmp_path / "state")

    assert load_secrets(tmp_path / "state") == first
    assert len(first.operator_token) > 30
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "state").iterdir()} == {0o600}
    assert load_secrets(tmp_path / "state", operator_token="given").operator_token == "given"


async def test_processes_that_start_at_once_on_one_folder_draw_one_secret(tmp_path: Path) -> None:
    """Six services of a new deployment: none may go on with a secret of its own, or with an empty one."""
    found = await asyncio.gather(*(asyncio.to_thread(load_secrets, tmp_path) for _ in range(16)))

    assert {secrets.operator_token for secrets in found} == {found[0].operator_token}
    assert len(list(tmp_path.iterdir())) == 2  # noqa: ASYNC240 - two names


def test_empty_secret_is_refused(tmp_path: Path) -> None:
    """It would let everybody in."""
    (tmp_path / "operator-token").touch()

    with pytest.raises(ConfigError, match="is empty"):
        load_secrets(tmp_path)
