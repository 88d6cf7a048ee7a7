"""Reads and checks a task directory."""

import os
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from evener.proto.sandbox import ImageBuild, SandboxSpec
from evener.proto.spec import GraderSpec
from evener.runtime.file_errors import is_of_files
from evener.tasks import manifest
from evener.tasks.errors import TaskError
from evener.tasks.grader_table import hacking_of, own_grader
from evener.tasks.tables import Cleaning, Healthcheck, McpServer, RewardStrategy
from evener.tasks.verification import DOCKERFILE, STEPS_FOLDER, Verification, verification

INSTRUCTION: Final = "instruction.md"
MANIFEST: Final = "task.toml"
COMPOSE_FILES: Final = ("docker-compose.yaml", "docker-compose.yml")
SOLUTION_FOLDER: Final = "solution"
SOLVE: Final = "solve.sh"
ANSWER: Final = "answer.txt"
STEP_WORKDIR: Final = "workdir"
STEP_FILES: Final = "steps/{}/"
"""The prefix of what an agent left after a step of a name, and of the evidence of its tests."""
IGNORED: Final = frozenset({"__pycache__", ".git", ".DS_Store"})
"""File names that are not part of a task."""

MAX_FILES: Final = 10_000
MAX_BYTES: Final = 64 * 1024 * 1024
"""The limit of all files together."""
MAX_TASK_DEPTH: Final = 50
"""The limit of nested folders."""


class Task(Struct, frozen=True, kw_only=True):
    """A task directory that was read and checked."""

    name: str
    """`[task] name`, or the folder's name."""
    path: Path
    instruction: str
    """The instruction for the agent, without canary lines."""
    environment: Path | None
    """The folder whose files are copied into the agent's working directory. None: there are none, or the image is built with them."""
    verification: Verification
    """Its tests. A task that is graded without a script may have none."""
    solution: Path | None = None
    """The folder with the oracle: `solve.sh`, or the `answer.txt` of a task that is graded by its answer. None: the task has none."""
    solution_env: dict[str, str] = {}
    """The environment variables of the oracle."""
    sandbox: SandboxSpec
    """The requirements of the agent's sandbox."""
    backend: str | None = None
    """The sandbox backend that the task asks for. None: any."""
    env: dict[str, str] = {}
    """The agent's environment variables."""
    agent_seconds: float | None
    """The agent's time limit. None: no limit."""
    grader: GraderSpec
    clean: Cleaning | None = None
    """What is removed from the agent's sandbox before the agent starts. None: nothing."""
    healthcheck: Healthcheck | None = None
    """What must succeed in the agent's sandbox before the agent starts."""
    mcp_servers: tuple[McpServer, ...] = ()
    steps: tuple["Task", ...] = ()
    """The steps on which the agent works one after the other, in one sandbox, each with its own instruction and tests. Empty: there is one,
    the task itself."""
    staged: Path | None = None
    """Of a step: the folder that is copied into the working directory before it. Its `setup.sh` is run. None: there is none."""
    min_reward: dict[str, float] = {}
    """Of a step: the least rewards, by name, with which the next step counts."""
    strategy: RewardStrategy = RewardStrategy.MEAN
    needs: tuple[str, ...] = ()
    """What the task needs that no sandbox gives yet, in words, such as GPUs. Empty: nothing."""


def bundled() -> Path:
    """Return the folder of the demo's tasks."""
    return Path(__file__).parent / "bundled"


def find(path: Path) -> list[Path]:
    """Return `path` if it is a task, otherwise the tasks directly inside it, sorted by name. Raises TaskError if there are none."""
    if not path.is_dir():
        msg = f"{path} is not a directory"
        raise TaskError(msg)
    if _is_task(path):
        return [path]
    found = sorted(entry for entry in path.iterdir() if entry.is_dir() and _is_task(entry))
    if not found:
        msg = f"{path} holds no task: neither {INSTRUCTION} nor {MANIFEST} is there or one folder below"
        raise TaskError(msg)
    return found


def load(path: Path) -> Task:
    """Read and check the task directory `path`. Raises TaskError, which names the directory and its first fault.

    Raises OSError if the machine is at fault, such as for used-up descriptors.
    """
    try:
        return _load(path)
    except TaskError as cause:
        msg = f"task {path}: {cause.args[0]}"
        raise TaskError(msg) from cause
    except OSError as cause:
        if not is_of_files(cause):
            raise
        msg = f"task {path}: {cause.strerror}: {cause.filename}"
        raise TaskError(msg) from cause


def entries(path: Path) -> list[Path]:
    """Return everything below `path`, sorted, without following links. Raises TaskError for what a task may not contain, OSError."""
    found: list[Path] = []
    size = 0
    for folder, names, files in os.walk(path, onerror=_raise):
        if len(Path(folder).relative_to(path).parts) > MAX_TASK_DEPTH:
            msg = f"its folders are nested deeper than {MAX_TASK_DEPTH}"
            raise TaskError(msg)
        names[:] = [name for name in names if name not in IGNORED]
        for name in (*names, *(name for name in files if name not in IGNORED)):
            entry = Path(folder, name)
            size += _size(path, entry)
            found.append(entry)
        if len(found) > MAX_FILES or size > MAX_BYTES:
            msg = f"it is too large: more than {MAX_FILES} files or {MAX_BYTES // 1024**2} MiB"
            raise TaskError(msg)
    return sorted(found)


def leaves(root: Path, link: Path) -> bool:
    """Return whether a link points outside `root`, or is a loop."""
    try:
        return link.readlink().is_absolute() or not link.resolve().is_relative_to(root.resolve())
    except RuntimeError:
        return True


def _load(path: Path) -> Task:
    if not path.is_dir():
        msg = "it is not a directory"
        raise TaskError(msg)
    if not _is_task(path):
        msg = f"it is not a task: it has neither {INSTRUCTION} nor {MANIFEST}"
        raise TaskError(msg)
    entries(path)
    read = manifest.parse(_text(path / MANIFEST)) if (path / MANIFEST).exists() else manifest.Manifest()
    environment = path / "environment"
    image = read.environment.docker_image or _build(environment)
    verified = verification(path, read, None, image)
    own = read.metadata.evener
    task = Task(
        name=read.task.name or path.resolve().name,
        path=path,
        instruction="" if read.steps else _instruction(path),
        environment=environment if environment.is_dir() and not isinstance(image, ImageBuild) else None,
        verification=verified,
        solution=_solution(path / SOLUTION_FOLDER),
        solution_env=read.solution.env,
        sandbox=structs.replace(
            manifest.sandbox(read.environment, read.agent, image), read_only_root=None if own is None else own.read_only_root
        ),
        backend=None if own is None else own.sandbox,
        env=read.environment.env,
        agent_seconds=read.agent.timeout_sec,
        grader=_grader(read, has_script=verified.has_script),
        clean=None if own is None else own.clean,
        healthcheck=read.environment.healthcheck,
        mcp_servers=read.environment.mcp_servers,
        strategy=read.multi_step_reward_strategy,
        needs=(*_needs_of_files(path), *manifest.needs(read)),
    )
    return _with_steps(task, read, image) if read.steps else task


def _with_steps(task: Task, read: manifest.Manifest, image: str | ImageBuild | None) -> Task:
    """Return a task of several steps. Its own instruction is that of the first, and its time that of all. Raises TaskError."""
    names = [step.name.casefold() for step in read.steps]
    if again := [name for name in names if names.count(name) > 1]:
        msg = f"two of its steps are called {again[0]!r}"
        raise TaskError(msg)
    if task.grader.name != "harbor":
        msg = f"it has several steps, which the grader `harbor` grades, not `{task.grader.name}`"
        raise TaskError(msg)
    steps = tuple(_step(task, read, step, image) for step in read.steps)
    seconds = [step.agent_seconds for step in steps if step.agent_seconds is not None]
    limit = sum(seconds) if len(seconds) == len(steps) else None
    return structs.replace(task, instruction=steps[0].instruction, agent_seconds=limit, steps=steps)


def _step(task: Task, read: manifest.Manifest, step: manifest.StepTable, image: str | ImageBuild | None) -> Task:
    folder = task.path / STEPS_FOLDER / step.name
    verified = verification(task.path, read, step, image)
    if not verified.has_script:
        msg = f"its step {step.name!r} has no tests/test.sh"
        raise TaskError(msg)
    least = step.min_reward
    return structs.replace(
        task,
        name=step.name,
        instruction=_instruction(task.path, f"{STEPS_FOLDER}/{step.name}/{INSTRUCTION}"),
        verification=verified,
        solution=_solution(folder / SOLUTION_FOLDER),
        agent_seconds=step.agent.timeout_sec or task.agent_seconds,
        healthcheck=step.healthcheck,
        staged=folder / STEP_WORKDIR if (folder / STEP_WORKDIR).is_dir() else None,
        min_reward=least if isinstance(least, dict) else {} if least is None else {"reward": least},
    )


def _solution(folder: Path) -> Path | None:
    return folder if any((folder / name).is_file() for name in (SOLVE, ANSWER)) else None


def _build(environment: Path) -> ImageBuild | None:
    return ImageBuild(context=str(environment), dockerfile=DOCKERFILE) if (environment / DOCKERFILE).is_file() else None


def _is_task(path: Path) -> bool:
    return (path / INSTRUCTION).exists() or (path / MANIFEST).exists()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        msg = f"{path.name} is not UTF-8 text (byte {cause.start})"
        raise TaskError(msg) from cause


def _instruction(root: Path, name: str = INSTRUCTION) -> str:
    if not (root / name).is_file():
        msg = f"it has no {name}"
        raise TaskError(msg)
    lines = _text(root / name).splitlines()
    while lines and (not lines[0].strip() or _is_canary(lines[0].strip())):
        del lines[0]
    text = "\n".join(lines).strip()
    if not text:
        msg = f"{name} is empty"
        raise TaskError(msg)
    return text


def _is_canary(line: str) -> bool:
    return line.startswith(("#", "<!--", "//")) and "canary" in line.lower()


def _grader(read: manifest.Manifest, *, has_script: bool) -> GraderSpec:
    if (own := own_grader(read.metadata.evener)) is not None:
        return own
    if has_script or read.steps:
        return GraderSpec(name="harbor", hacking=hacking_of(read.metadata.evener))
    msg = "it has neither tests/test.sh nor a grader in [metadata.evener] of task.toml"
    raise TaskError(msg)


def _needs_of_files(path: Path) -> tuple[str, ...]:
    services = [f"the services of environment/{name}" for name in COMPOSE_FILES if (path / "environment" / name).exists()]
    folders = [path, *(path / STEPS_FOLDER).glob("*")]
    composed = any((folder / "tests" / name).exists() for folder in folders for name in COMPOSE_FILES)
    grading = ["several services for grading"] if composed else []
    context = ["earlier context (trajectory.json)"] if (path / "trajectory.json").exists() else []
    return (*services, *grading, *context)


def _raise(unlisted: OSError) -> None:
    raise unlisted


def _size(root: Path, entry: Path) -> int:
    """Return the size of a file in bytes. Raises TaskError for a link that leaves the directory, and for devices and sockets."""
    name = entry.relative_to(root)
    if entry.is_symlink():
        if leaves(root, entry):
            msg = f"{name} is a link that leaves the directory"
            raise TaskError(msg)
        return 0
    if not entry.is_dir() and not entry.is_file():
        msg = f"{name} is neither a file nor a folder"
        raise TaskError(msg)
    return 0 if entry.is_dir() else entry.stat().st_size
