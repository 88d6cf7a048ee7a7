"""Real harnesses from their bundles in containers whose image has neither Node nor the Python that they need."""

import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.integration.test_harness_checks import BY_NPM, assert_linear

from evener.cli.harness_check import run_check, run_request_of, script
from evener.harnesses import pip
from evener.harnesses.registry import harness
from evener.proto.spec import HarnessSpec, Streaming

pytestmark = [pytest.mark.cli, pytest.mark.docker]


def configured(docker_host: str) -> tuple[str, ...]:
    """Return the options of an Evener whose sandboxes are containers of this daemon. Programs run as user 1000."""
    sandboxes = msgspec.json.encode({"docker": {"host": docker_host, "image": "evener-base"}}).decode()
    return ("--sandboxes", sandboxes)


async def works(folder: Path, name: str, docker_host: str, **options: str) -> None:
    """Run a harness to its end: five calls with its own shell tool, graded in a fresh container, delivered in one row."""
    spec = HarnessSpec(name=name, options=options, sandbox="docker")
    probe = harness(name).probe
    assert probe is not None
    figures = await run_check(script(probe), run_request_of(spec, Streaming.BUFFERED), configured(docker_host), folder / "state")

    assert_linear(figures)


def test_the_image_has_none_of_what_the_bundles_bring(docker_host: str) -> None:
    """Or the other tests would show nothing."""
    asked = "command -v node npm pip python3.12; ls -A /root"
    run = ["docker", "--host", docker_host, "run", "--rm", "--network", "none", "evener-base", "sh", "-c", asked]
    found = subprocess.run(run, capture_output=True, text=True, check=False)

    assert found.stdout == ""


@BY_NPM
@pytest.mark.parametrize("name", ["pi", "codex"])
async def test_harnesses_from_npm_bring_their_node(tmp_path: Path, name: str, docker_host: str) -> None:
    await works(tmp_path, name, docker_host)


@BY_NPM
async def test_harnesses_work_in_namespaces(tmp_path: Path) -> None:
    """Pi in `bubblewrap`: no daemon, no trust."""
    spec = HarnessSpec(name="pi", sandbox="bubblewrap")
    probe = harness("pi").probe
    assert probe is not None

    assert_linear(await run_check(script(probe), run_request_of(spec, Streaming.BUFFERED), (), tmp_path / "state"))


@BY_NPM
@pytest.mark.slow
@pytest.mark.parametrize("name", ["claude_code", "gemini_cli", "qwen_code"])
async def test_further_harnesses_from_npm_bring_their_node(tmp_path: Path, name: str, docker_host: str) -> None:
    await works(tmp_path, name, docker_host)


@BY_NPM
@pytest.mark.slow
async def test_openclaw_brings_its_node(tmp_path: Path, docker_host: str) -> None:
    await works(tmp_path, "openclaw", docker_host, dialect="responses")


@pytest.mark.slow
@pytest.mark.skipif(not pip.pythons(), reason=f"NOT TESTED WITH HARNESSES FROM PYPI: Python {pip.PYTHON_VERSION} is missing")
@pytest.mark.parametrize("name", ["hermes", "openhands"])
async def test_harnesses_from_pypi_bring_their_python(tmp_path: Path, name: str, docker_host: str) -> None:
    """With its libraries: the image has another Python, or none."""
    await works(tmp_path, name, docker_host)
