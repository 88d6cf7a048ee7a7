"""What compose.yaml says, held against the services."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from evener.cli.up import SERVICES
from evener.service.config_app import load

COMPOSE = Path(__file__).parents[3] / "compose"
FILE: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
VARIABLES = dict(line.split("=", 1) for line in (COMPOSE / ".env").read_text().splitlines() if line and not line.startswith("#"))
NAMED = re.compile(r"\$\{(\w+)\}")
ONE_SHOT = {"engine-joins", "vllm-joins", "cli"}
PROFILES = {"embedded", "vllm", "observability", "cli"}


def _filled(text: str) -> str:
    return NAMED.sub(lambda named: VARIABLES[named[1]], text)


def _service(name: str) -> dict[str, Any]:
    service: dict[str, Any] = FILE["services"][name.replace("_", "-")]
    return service


def test_every_variable_has_a_value_and_every_value_is_used() -> None:
    """Compose would replace an unknown one by nothing, with a warning."""
    named = set(NAMED.findall((COMPOSE / "compose.yaml").read_text()))

    assert named == VARIABLES.keys() - {"COMPOSE_PROJECT_NAME"}


def test_images_are_pinned() -> None:
    """`latest` is another program every week."""
    images = {_filled(service["image"]) for service in FILE["services"].values()}

    assert all(re.fullmatch(r"evener:(services|full)|\S+:v?\d+\.\d+\.\d+", image) for image in images), images


def test_services_without_a_profile_are_what_every_deployment_has() -> None:
    always = {name for name, service in FILE["services"].items() if "profiles" not in service}
    profiles = {profile for service in FILE["services"].values() for profile in service.get("profiles", ())}

    assert always == {"kafka", "objects", *(name.replace("_", "-") for name in SERVICES)}
    assert profiles == PROFILES


@pytest.mark.parametrize("name", sorted(FILE["services"].keys() - ONE_SHOT - {"collector"}))
def test_whatever_serves_is_probed_and_started_again(name: str) -> None:
    """The collector's image has no program that could probe it."""
    service = FILE["services"][name]

    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_services_understand_their_variables(name: str, tmp_path: Path) -> None:
    """An unknown key would end a container at its start, again and again. A stop leaves the time that the service takes."""
    service = _service(name)
    for secret in service["secrets"]:
        (tmp_path / secret).write_text("drawn\n")
    given = {key: _filled(value).replace("/run/secrets", str(tmp_path)) for key, value in service["environment"].items()}
    config = load(importlib.import_module(f"evener.{name}.config").Config, [], given, name)

    assert service["command"] == [f"evener.{name}"]
    assert config.operator_token == config.capability_key == "drawn"
    assert config.bus == "kafka://kafka:9092"
    assert service["stop_grace_period"] == "2m"
    assert config.stop_seconds + 15 < 120


def test_prometheus_scrapes_every_service() -> None:
    scraped = yaml.safe_load((COMPOSE / "observability/prometheus.yaml").read_text())["scrape_configs"][0]["dns_sd_configs"][0]

    assert scraped["names"] == [name.replace("_", "-") for name in SERVICES]
    assert scraped["port"] == 8700
