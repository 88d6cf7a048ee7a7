"""The sandbox of a running Evener: `evener up --sandbox` chooses it, and tasks that need an image get one."""

from pathlib import Path

import pytest
from tests.support.commands import evener as command
from tests.support.engines import smollm
from tests.support.ports import closed_port
from tests.support.up import up

from evener.cli.all_in_one import check_sandbox
from evener.cli.config import Config
from evener.client.client import Client
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.errors import ConfigError
from evener.service.state_folder import TOKEN_FILE


def task(folder: Path, name: str, **files: str) -> None:
    """Write a task whose reward tells where its test ran."""
    for place, content in ({"instruction.md": "Say hello."} | files).items():
        path = folder / name / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.mark.docker
async def test_tasks_run_in_containers_of_an_evener_that_was_started_for_them(
    tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run names no sandbox: one task has a Dockerfile, the other one takes the default. A run may name another one."""
    monkeypatch.setenv("EVENER_SANDBOXES", f'{{"docker": {{"host": "{docker_host}", "image": "evener-base", "build_network": "none"}}}}')
    tasks, state = tmp_path / "tasks", tmp_path / "state"
    reward = "&& r=1\necho ${r:-0} > /logs/verifier/reward.txt\n"
    dockerfile = "FROM evener-base\nRUN touch /of-the-image\n"
    task(tasks, "built", **{"environment/Dockerfile": dockerfile, "tests/test.sh": f"test -e /of-the-image {reward}"})
    task(tasks, "plain", **{"tests/test.sh": f"test -e /.dockerenv {reward}"})
    words = ("run", str(tasks), "--harness", "script", "--samples", "1", "--sampling.max-tokens", "32", "--state", str(state))
    async with scripted_engine(Script(default=Rule(say="Hello.")), smollm()) as engine:
        options: dict[str, str | float] = {"sandbox": "docker", "engine": engine.url, "engine-kind": "scripted"}
        async with up(state, closed_port(), options) as running:
            await running.start()
            await running.ready()
            ran = await command(*words, "--run-id", "r")
            refused = await command(*words, "--sandbox", "bubblewrap")
            async with Client(running.url, (state / TOKEN_FILE).read_text().strip()) as client:
                rewards = {view.name: view.rewards for view in await client.tasks("r")}
            await running.stop()

    assert ran.code == 0, ran.errors
    assert rewards == {"built": (1.0,), "plain": (1.0,)}
    assert refused.code == 1
    assert "needs what the sandbox `bubblewrap` cannot give: an image of its own" in refused.errors


def test_up_without_what_its_sandbox_needs_says_so_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sandbox(Config(sandbox="local"))
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ConfigError, match="--sandbox bubblewrap: bwrap does not work here: install bubblewrap"):
        check_sandbox(Config(sandbox="bubblewrap"))
