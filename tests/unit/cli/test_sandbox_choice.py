"""Which sandbox a task gets: by its run, by its own word, by what it needs, and by what the Evener has that runs it."""

from pathlib import Path
from typing import Any, get_args

import pytest

from evener.cli.sandbox_choice import SandboxMissing, default_sandbox, offered_by, placed, sandboxes_of
from evener.cli.submission import RunRequest, plan
from evener.cli.task_needs import TaskNeedsMore
from evener.client.views import FleetView, InstanceView
from evener.proto.sandbox import SandboxOffer
from evener.proto.spec import HarnessSpec, Purpose
from evener.sandboxes.config import BackendName
from evener.sandboxes.registry import BACKENDS

ALL = SandboxOffer(backends=("local", "bubblewrap", "docker"))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task directory that names no sandbox."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("exit 0\n")
    (tmp_path / "instruction.md").write_text("Do it.\n")
    return tmp_path


@pytest.fixture
def with_dockerfile(task: Path) -> Path:
    (task / "environment").mkdir()
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    return task


def place(task: Path, offer: SandboxOffer, *, harness: str = "script", sandbox: str | None = None) -> str:
    """Return the sandbox of a run's only task."""
    asked = RunRequest(run_id="run", harness=HarnessSpec(name=harness), samples=4, purpose=Purpose.TRAIN)
    (found,) = sandboxes_of(placed(plan(task, asked, sandbox), offer))
    return found


def offer(*backends: str, **given: Any) -> SandboxOffer:
    return SandboxOffer(backends=backends, **given)


@pytest.mark.parametrize(
    ("harness", "sandbox", "offered", "wanted"),
    [
        ("pi", None, ALL, "bubblewrap"),
        ("pi", None, offer("local", "docker"), "docker"),
        ("pi", None, offer("local"), "local"),
        ("pi", None, offer("local", "bubblewrap", trusts_local=True), "local"),
        ("pi", "local", ALL, "local"),
        ("pi", "docker", ALL, "docker"),
        ("script", None, ALL, "local"),
        ("script", None, offer("local", "docker", default="docker"), "docker"),
        ("pi", None, offer("local", "bubblewrap", "docker", default="docker", trusts_local=True), "docker"),
        ("pi", "bubblewrap", offer("local", "bubblewrap", "docker", default="docker"), "bubblewrap"),
    ],
)
def test_run_comes_before_the_default_and_that_before_what_isolates(
    task: Path, harness: str, sandbox: str | None, offered: SandboxOffer, wanted: str
) -> None:
    """A plain process of a harness with tools is asked for, trusted, or all there is: then it needs trust."""
    assert place(task, offered, harness=harness, sandbox=sandbox) == wanted


@pytest.mark.parametrize(("offered", "wanted"), [(ALL, "local"), (offer("local", "docker", default="docker"), "local")])
def test_sandbox_that_a_task_names_is_kept(task: Path, offered: SandboxOffer, wanted: str) -> None:
    """Also the plain process, which then asks for trust."""
    (task / "task.toml").write_text('[metadata.evener]\ngrader = "harbor"\nsandbox = "local"\n')

    assert place(task, offered, harness="pi") == wanted


@pytest.mark.parametrize("default", ["", "local", "bubblewrap", "docker"])
def test_task_with_a_dockerfile_gets_a_container_where_there_are_any(with_dockerfile: Path, default: str) -> None:
    """Whatever the default of other tasks is."""
    assert place(with_dockerfile, offer("local", "bubblewrap", "docker", default=default)) == "docker"


def test_task_with_a_dockerfile_is_refused_by_name_where_there_are_no_containers(with_dockerfile: Path) -> None:
    with pytest.raises(TaskNeedsMore, match="what the sandbox `local` cannot give: an image of its own"):
        place(with_dockerfile, offer("local"))


def test_dockerfile_in_a_sandbox_that_the_run_names_is_refused_before_any_evener_is_asked(with_dockerfile: Path) -> None:
    asked = RunRequest(run_id="run", harness=HarnessSpec(name="script"), samples=4, purpose=Purpose.TRAIN)
    with pytest.raises(TaskNeedsMore, match="what the sandbox `bubblewrap` cannot give: an image of its own"):
        plan(with_dockerfile, asked, "bubblewrap")


def test_sandbox_that_the_evener_lacks_is_refused_with_those_that_it_has(task: Path) -> None:
    with pytest.raises(SandboxMissing, match=r"this Evener has no sandboxes of `docker` \(it has local, bubblewrap\)"):
        place(task, offer("local", "bubblewrap"), sandbox="docker")


def runner(told: SandboxOffer | None, **given: Any) -> InstanceView:
    fields: dict[str, Any] = {"instance_id": "r", "service": "sandbox_runner", "alive": True, "stopping": False, "active": False}
    fields |= {"address": None, "capacity": 1, "running": (), "partitions": (), "lag": (), "quarantined_seconds": None, "sandboxes": told}
    return InstanceView(**fields | given)


def test_runners_offer_together_what_one_of_them_has() -> None:
    """The dead and those that stop offer nothing; a default counts if it is that of all, and so does trust."""
    beats = (
        runner(offer("local", default="local", trusts_local=True)),
        runner(offer("docker", default="docker")),
        runner(offer("bubblewrap"), alive=False),
        runner(offer("bubblewrap"), stopping=True),
        runner(None, service="evaluator"),
    )
    assert offered_by(FleetView(instances=beats, engines=())) == offer("local", "docker")
    agreed = (runner(offer("docker", default="docker")),) * 2
    assert offered_by(FleetView(instances=agreed, engines=())) == offer("docker", default="docker")


@pytest.mark.parametrize("instances", [(), (runner(None),)])
def test_evener_that_does_not_say_what_it_has_is_taken_at_its_word_later(task: Path, instances: tuple[InstanceView, ...]) -> None:
    """No runner lives yet, or an older one: it is asked for what the run names, and refuses what it lacks."""
    told = offered_by(FleetView(instances=instances, engines=()))

    assert [place(task, told, sandbox=name) for name in (None, "docker")] == ["local", "docker"]


@pytest.mark.parametrize(
    ("harness", "offered", "wanted"),
    [
        ("pi", ALL, "bubblewrap"),
        ("pi", offer("local", trusts_local=True), "local"),
        ("script", ALL, "local"),
        ("pi", offer("local"), "local"),
    ],
)
def test_a_check_of_a_harness_runs_where_its_sessions_do(harness: str, offered: SandboxOffer, wanted: str) -> None:
    assert default_sandbox(HarnessSpec(name=harness), offered) == wanted


def test_configuration_names_the_backends_that_there_are() -> None:
    assert set(get_args(BackendName)) == set(BACKENDS)
