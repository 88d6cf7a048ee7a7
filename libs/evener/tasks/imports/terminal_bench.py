"""Imports task directories of Terminal-Bench 1: `task.yaml`, `run-tests.sh`, and a compose file of one service."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.proto.prepared import Converter
from evener.tasks.directory import COMPOSE_FILES, INSTRUCTION, MANIFEST, SOLVE, entries
from evener.tasks.errors import TaskError
from evener.tasks.imports.columns import toml
from evener.tasks.imports.port import ImportOptions, RefusedRow, SourceUnreadable, TaskDraft
from evener.tasks.test_markers import END, START
from evener.tasks.verification import DOCKERFILE

TASK_FILE: Final = "task.yaml"
RUN_TESTS: Final = "run-tests.sh"
SOLUTIONS: Final = ("solution.sh", "solution.yaml")
TEST_DIR: Final = "/tests"
SERVICE_KEYS: Final = frozenset({"build", "image", "container_name", "command", "volumes", "environment", "working_dir"})
"""What a service may say. All of it but the image, the environment and the working directory has no meaning here."""
TERMINAL_BENCH_SCRIPT: Final = """\
#!/bin/bash
export TEST_DIR=%s
echo '%s'
bash "$TEST_DIR/run-tests.sh"
echo '%s'
"""


class TerminalBenchTask(Struct, frozen=True):
    """The part of task.yaml that a task is made of."""

    instruction: str
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = 360.0
    max_test_timeout_sec: float = 60.0
    run_tests_in_same_shell: bool = False


_tasks: Final = Converter(TerminalBenchTask, strict=False)


def import_terminal_bench(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:  # noqa: ARG001 - the port's signature
    """Yield a task for each directory in a folder. Raises SourceUnreadable."""
    found = terminal_bench_tasks(Path(source))
    if not found:
        msg = f"{source} holds no task of Terminal-Bench 1 ({TASK_FILE}, {RUN_TESTS})"
        raise SourceUnreadable(msg)
    for path in found:
        try:
            yield TaskDraft(name=path.resolve().name, files=_files(path))
        except (TaskError, OSError, msgspec.ValidationError) as cause:
            yield RefusedRow(name=path.name, reason=str(getattr(cause, "strerror", None) or cause.args[0]))


def terminal_bench_tasks(folder: Path) -> list[Path]:
    """Return the folder if it is such a task, otherwise those directly inside it, sorted by name."""
    if (folder / TASK_FILE).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{TASK_FILE}")) if folder.is_dir() else []


def _files(path: Path) -> dict[str, bytes]:
    task = _tasks.convert(_yaml(path / TASK_FILE))
    _check(task, path)
    service = _service(path)
    build = service.get("build") or "."
    context = PurePosixPath(build.get("context", ".") if isinstance(build, dict) else build)
    own = {TASK_FILE, RUN_TESTS, *SOLUTIONS, *COMPOSE_FILES}
    files: dict[str, bytes] = {}
    for entry in entries(path):
        name = entry.relative_to(path)
        if not entry.is_file() or entry.is_symlink() or str(name) in own:
            continue
        if name.parts[0] == "tests":
            files[str(name)] = entry.read_bytes()
        elif name.is_relative_to(context):
            files[f"environment/{name.relative_to(context)}"] = entry.read_bytes()
    if f"environment/{DOCKERFILE}" not in files and "image" not in service:
        msg = f"it has neither a {DOCKERFILE} nor an image"
        raise TaskError(msg)
    files |= {
        INSTRUCTION: task.instruction.encode(),
        "tests/run-tests.sh": (path / RUN_TESTS).read_bytes(),
        "tests/test.sh": (TERMINAL_BENCH_SCRIPT % (TEST_DIR, START, END)).encode(),
        "tests/expected.json": b'{"parser": "pytest", "every": true}',
        MANIFEST: _manifest(task, service, has_dockerfile=f"environment/{DOCKERFILE}" in files),
    }
    return files | _solution(path)


def _check(task: TerminalBenchTask, path: Path) -> None:
    """Refuse what the tests need and would not find."""
    if task.parser_name != "pytest":
        msg = f"no parser reads the output of its tests ({task.parser_name})"
        raise TaskError(msg)
    if task.run_tests_in_same_shell:
        msg = "its tests run in the shell of the agent, which ends with the agent"
        raise TaskError(msg)
    if not (path / RUN_TESTS).is_file():
        msg = f"it has no {RUN_TESTS}"
        raise TaskError(msg)


def _manifest(task: TerminalBenchTask, service: Mapping[str, Any], *, has_dockerfile: bool) -> bytes:
    place = {} if has_dockerfile else {"docker_image": service["image"]}
    place |= {"workdir": service["working_dir"]} if "working_dir" in service else {}
    return toml(
        {
            "agent": {"timeout_sec": task.max_agent_timeout_sec},
            "verifier": {"timeout_sec": task.max_test_timeout_sec},
            "environment": place,
            "environment.env": _environment(service.get("environment") or {}),
            "metadata.evener": {"grader": "test_log", "expected": "expected.json"},
        }
    )


def _environment(given: Any) -> dict[str, str]:
    pairs = given.items() if isinstance(given, dict) else [str(one).partition("=")[::2] for one in given]
    return {shlex.quote(str(name)): str(value) for name, value in pairs if "${" not in str(value)}


def _service(path: Path) -> dict[str, Any]:
    """Return the only service of the compose file. Raises TaskError for what one sandbox cannot be."""
    file = next((path / name for name in COMPOSE_FILES if (path / name).is_file()), None)
    if file is None:
        return {}
    composed = _yaml(file)
    services = composed.get("services") if isinstance(composed, dict) else None
    if not isinstance(services, dict) or len(services) != 1:
        msg = f"{file.name} has {len(services or ())} services, not one"
        raise TaskError(msg)
    (service,) = services.values()
    if wrong := sorted(set(service or {}) - SERVICE_KEYS):
        msg = f"its service has {wrong[0]!r}, which no sandbox gives"
        raise TaskError(msg)
    return dict(service or {})


def _solution(path: Path) -> dict[str, bytes]:
    script, steps = (path / name for name in SOLUTIONS)
    if script.is_file():
        return {f"solution/{SOLVE}": script.read_bytes()}
    if not steps.is_file():
        return {}
    commands = [str(one["command"]) for one in _yaml(steps) or [] if isinstance(one, dict) and one.get("command")]
    return {f"solution/{SOLVE}": "\n".join(("#!/bin/bash", *commands, "")).encode()}


def _yaml(file: Path) -> Any:
    try:
        import yaml  # noqa: PLC0415 - not a dependency
    except ImportError as cause:
        msg = "tasks of Terminal-Bench 1 need the package `pyyaml` (pip install 'evener[sources]')"
        raise SourceUnreadable(msg) from cause
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        msg = f"{file.name}: {' '.join(str(cause).split())}"
        raise TaskError(msg) from cause
