"""Task directories as their writers hand them in."""

import os
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.spent import descriptors_used_up
from tests.support.trees import dig, scratch

from evener.proto.sandbox import ImageBuild, Network, NetworkMode, SandboxLimits, SandboxSpec
from evener.proto.spec import GraderSpec
from evener.sandboxes.registry import lacks
from evener.tasks.directory import MAX_BYTES, MAX_TASK_DEPTH, bundled, find, load
from evener.tasks.errors import TaskError

ANSWER = '[metadata.evener]\nexpected = "Paris"\nmatch = "contains"\n'


def written(folder: Path, **files: str) -> Path:
    """Make a task directory; `__` in a name is a slash, `_toml` and the like an extension."""
    names = {"instruction": "instruction.md", "manifest": "task.toml", "test": "tests/test.sh", "dockerfile": "environment/Dockerfile"}
    for name, text in files.items():
        path = folder / names.get(name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(TaskError) as error:
        load(folder)
    assert str(folder) in str(error.value)
    return str(error.value)


def test_every_bundled_task_is_good_and_needs_no_image() -> None:
    """The demo runs them in plain working directories."""
    tasks = [load(path) for path in find(bundled())]

    assert len(tasks) >= 4
    assert {task.grader.name for task in tasks} == {"answer", "harbor"}
    assert any(task.environment and task.verification.has_script for task in tasks)
    assert not any(task.needs for task in tasks)


def test_harbor_task_is_read_whole(tmp_path: Path) -> None:
    manifest = """
        schema_version = "1.4"
        source = "somewhere"
        artifacts = ["/logs/artifacts"]
        [task]
        name = "org/fix"
        keywords = ["python"]
        [metadata]
        difficulty = "easy"
        [agent]
        timeout_sec = 90
        [verifier]
        timeout_sec = 30
        env = { LEVEL = "2" }
        [environment]
        build_timeout_sec = 10
        cpus = 0.5
        workdir = "/app"
        env = { MODE = "test" }
    """
    task = load(written(tmp_path, instruction="Fix it.\n", manifest=manifest, test="true"))

    assert (task.name, task.instruction, task.sandbox.workdir) == ("org/fix", "Fix it.", "/app")
    assert (task.agent_seconds, task.verification.seconds) == (90, 30)
    assert (task.env, task.verification.env) == ({"MODE": "test"}, {"LEVEL": "2"})
    assert (task.verification.tests, task.environment) == ((tmp_path / "tests",), None)
    assert task.grader == GraderSpec(name="harbor")
    assert task.needs == ()


def test_task_without_manifest_takes_harbors_defaults(tmp_path: Path) -> None:
    task = load(written(tmp_path / "plain", instruction="Go.", test="true"))

    assert (task.name, task.agent_seconds, task.verification.seconds) == ("plain", None, 600)


def test_canary_lines_never_reach_the_agent(tmp_path: Path) -> None:
    """Only leading comments with the word are cut: a heading stays."""
    text = "<!-- harbor-canary GUID 1 -->\n\n# CANARY 2\n# Heading\ncanary in the text\n"

    assert load(written(tmp_path, instruction=text, manifest=ANSWER)).instruction == "# Heading\ncanary in the text"


def test_own_grader_wins_over_the_script(tmp_path: Path) -> None:
    task = load(written(tmp_path, instruction="?", manifest='[metadata.evener]\nexpected = 7\nmatch = "number"\n', test="true"))

    assert task.grader == GraderSpec(name="answer", options={"expected": "7", "match": "number"})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"manifest": ANSWER}, "no instruction.md"),
        ({"instruction": "# canary only\n", "manifest": ANSWER}, "instruction.md is empty"),
        ({"instruction": "Go."}, "neither tests/test.sh nor a grader"),
        ({"instruction": "Go.", "manifest": "[agent]\ntimeout_sec = soon\n"}, "line 2"),
        ({"instruction": "Go.", "manifest": '[agent]\ntimeout_sec = "long"', "test": ""}, "$.agent.timeout_sec"),
        ({"instruction": "Go.", "manifest": "[agent]\ntimeout_sec = -1", "test": ""}, "$.agent.timeout_sec"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\nexpects = "x"'}, "unknown field `expects`"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\nmatch = "exact"'}, "no `expected`"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\nexpected = "x"\nmatch = "fuzzy"'}, "not one of exact"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\nexpected = "("\nmatch = "regex"'}, "is not a regular"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\nexpected = "a{99999999999}"\nmatch = "regex"'}, "is not a regular"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\nexpected = "x"\nmatch = "number"'}, "expected is not a number"),
        ({"instruction": "Go.", "manifest": '[metadata.evener]\ngrader = "judge"\nmatch = "exact"'}, "the grader 'judge'"),
        ({"manifest": '[[steps]]\nname = "one"', "test": ""}, "no steps/one/instruction.md"),
        ({"instruction": "Go.", "manifest": f"a = {'[' * 5000}{']' * 5000}", "test": ""}, "nested too deeply"),
        ({"instruction": "Go.", "manifest": f"a{'.a' * 5000} = 1", "test": ""}, "line 1 has more than 1000 dots"),
        ({"instruction": "Go.", "manifest": "#" * 300_000, "test": ""}, "larger than 256 KiB"),
        ({"instruction": "Go.", "manifest": '[environment]\nworkdir = "app"', "test": ""}, "workdir is 'app'"),
        ({"instruction": "Go.", "manifest": '[environment]\nworkdir = "/app/../../x"', "test": ""}, "an absolute path without '..'"),
        ({"instruction": "Go.", "manifest": '[environment]\nworkdir = "/a\\u0000"', "test": ""}, "an absolute path without '..'"),
    ],
)
def test_fault_is_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    """One clear reason for each, with the line or the key where there is one."""
    assert said in refused(written(tmp_path, **files))


@pytest.mark.parametrize(
    ("manifest", "need"),
    [
        ("[environment]\ngpus = 2", "2 GPUs"),
        ('[environment]\nos = "windows"', "an operating system other than linux"),
        ('[environment]\nenv = { KEY = "${KEY}" }', "variables of the host"),
        ('artifacts = [{ source = "/data", service = "db" }]', "several services"),
    ],
)
def test_what_no_sandbox_gives_is_said(tmp_path: Path, manifest: str, need: str) -> None:
    """The task is good, and refused before it starts."""
    task = load(written(tmp_path, instruction="Go.", manifest=manifest, test="true"))

    assert any(need in said for said in task.needs)


def test_dockerfile_is_built_with_the_files_beside_it(tmp_path: Path) -> None:
    """Its folder is the context: nothing of it is copied into the working directory."""
    task = load(written(tmp_path, instruction="Go.", test="true", dockerfile="FROM scratch"))

    assert task.sandbox.image == ImageBuild(context=str(tmp_path / "environment"))
    assert task.environment is None
    assert task.needs == ()


@pytest.mark.parametrize(("said", "agent", "tests"), [("", None, None), ("true", True, None), ("false", False, False)])
def test_read_only_root_is_the_agents_and_a_writable_one_that_of_its_tests_too(
    tmp_path: Path, said: str, *, agent: bool | None, tests: bool | None
) -> None:
    """What the agent installed there may be what its tests need; tests may install something themselves."""
    made = load(written(tmp_path, instruction="Go.", test="true", manifest=f"[metadata.evener]\nread_only_root = {said}\n" if said else ""))

    assert (made.sandbox.read_only_root, made.verification.sandbox.read_only_root) == (agent, tests)
    assert made.grader.name == "harbor"


def test_tests_that_drop_their_rights_begin_as_root_and_the_agent_has_none(tmp_path: Path) -> None:
    made = load(written(tmp_path, instruction="Go.", test="true", manifest="[metadata.evener]\ntests_drop_rights = true\n"))

    assert (made.sandbox.user, made.sandbox.drops_rights) == (None, False)
    assert (made.verification.sandbox.user, made.verification.sandbox.drops_rights) == ("0:0", True)
    assert lacks("bubblewrap", made) == ("tests that drop their rights",)
    assert lacks("docker", made) == ()


def test_manifest_says_what_the_sandboxes_of_both_phases_are(tmp_path: Path) -> None:
    """The keys of a phase go before those of the environment."""
    manifest = """
        [environment]
        docker_image = "python:3"
        cpus = 0.5
        memory_mb = 512
        storage_mb = 1024
        network_mode = "no-network"
        [agent]
        user = 1000
        [verifier]
        user = "root"
        network_mode = "allowlist"
        allowed_hosts = ["*.example.org"]
    """
    task = load(written(tmp_path, instruction="Go.", manifest=manifest, test="true"))

    limits = SandboxLimits(cpus=0.5, memory_bytes=512 << 20, disk_bytes=1024 << 20)
    agents = SandboxSpec(image="python:3", user="1000", limits=limits, network=Network(mode=NetworkMode.NONE))
    assert task.sandbox == agents
    network = Network(mode=NetworkMode.ALLOWLIST, hosts=("*.example.org",))
    assert task.verification.sandbox == structs.replace(agents, user="root", network=network)


@pytest.mark.parametrize(
    ("manifest", "mode"),
    [
        ("", None),
        ("[environment]\nallow_internet = false", NetworkMode.NONE),
        ("[environment]\nallow_internet = true", NetworkMode.PUBLIC),
        ('[environment]\nnetwork_mode = "public"', NetworkMode.PUBLIC),
        ('[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "no-network"', NetworkMode.NONE),
    ],
)
def test_network_of_the_agent(tmp_path: Path, manifest: str, mode: NetworkMode | None) -> None:
    """A task that declares nothing asks for nothing, whatever Harbor's default is."""
    network = load(written(tmp_path, instruction="Go.", manifest=manifest, test="true")).sandbox.network

    assert (None if network is None else network.mode) == mode


@pytest.mark.parametrize("manifest", ['[agent]\nnetwork_mode = "allowlist"', '[environment]\nallowed_hosts = ["a"]'])
def test_network_that_contradicts_itself_is_refused(tmp_path: Path, manifest: str) -> None:
    with pytest.raises(TaskError, match="allowed_hosts"):
        load(written(tmp_path, instruction="Go.", manifest=manifest, test="true"))


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "loop"])
def test_link_that_leaves_the_directory_is_refused(tmp_path: Path, target: str) -> None:
    task = written(tmp_path / "task", instruction="Go.", test="true")
    (tmp_path / "outside").write_text("secret")
    (task / "loop").symlink_to(target)

    assert "loop is a link that leaves the directory" in refused(task)


def test_pipe_is_refused(tmp_path: Path) -> None:
    """Reading one would wait for ever."""
    os.mkfifo(written(tmp_path, instruction="Go.", test="true") / "pipe")

    assert "pipe is neither a file nor a folder" in refused(tmp_path)


def test_task_deeper_than_the_stack_is_refused() -> None:
    """Walking it once ended in a RecursionError."""
    with scratch() as folder:
        (folder / "instruction.md").write_text("Do it.")
        (folder / "tests").mkdir()
        (folder / "tests" / "test.sh").touch()
        (folder / "environment").mkdir()
        dig(folder / "environment", 1_100)
        with pytest.raises(TaskError, match="nested deeper than 50"):
            load(folder)


def test_huge_task_is_refused(tmp_path: Path) -> None:
    with written(tmp_path, instruction="Go.", test="true").joinpath("big").open("wb") as file:
        file.truncate(MAX_BYTES + 1)

    assert "it is too large" in refused(tmp_path)


def test_folder_that_is_no_task_is_refused_for_that_first(tmp_path: Path) -> None:
    """Whatever else is wrong with it: it may be large."""
    (tmp_path / "deep" / "/".join("d" * MAX_TASK_DEPTH)).mkdir(parents=True)

    assert f"task {tmp_path}: it is not a task: it has neither instruction.md nor task.toml" in refused(tmp_path)


def test_tasks_are_found_alone_and_in_a_folder(tmp_path: Path) -> None:
    one, two = (written(tmp_path / name, instruction="Go.", test="true") for name in ("a", "b"))
    (tmp_path / "notes").mkdir()

    assert find(one) == [one]
    assert find(tmp_path) == [one, two]


def test_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no task"):
        find(tmp_path)
    with pytest.raises(TaskError, match="is not a directory"):
        find(tmp_path / "absent")


def test_machine_at_its_limit_is_not_the_fault_of_a_task() -> None:
    """Nor is a task read without the files that could not be listed."""
    task = find(bundled())[0]

    with descriptors_used_up(), pytest.raises(OSError, match="Too many open files"):
        load(task)
