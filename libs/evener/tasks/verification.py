"""How a task, or one of its steps, is verified: which tests run, where, and what they see of the agent's work."""

from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from evener.proto.sandbox import ImageBuild, SandboxSpec
from evener.tasks.manifest import Environment, Manifest, StepTable, Verifier, sandbox
from evener.tasks.tables import Handover, Healthcheck, VerifierMode, handed_over

DOCKERFILE: Final = "Dockerfile"
TESTS_FOLDER: Final = "tests"
TEST: Final = "test.sh"
STEPS_FOLDER: Final = "steps"
TEST_SECONDS: Final = 600.0
"""The time limit of tests that have none of their own."""


class Verification(Struct, frozen=True, kw_only=True):
    """The tests of a task or of a step."""

    tests: tuple[Path, ...] = ()
    """The folders that are brought in after the agent has finished, later ones over earlier ones."""
    has_script: bool = False
    """Whether they, or the image, have `test.sh`."""
    sandbox: SandboxSpec
    """The requirements of the tests' sandbox."""
    seconds: float
    env: dict[str, str] = {}
    healthcheck: Healthcheck | None = None
    """What must succeed in their sandbox before they start."""
    handover: Handover | None = None
    """What they see of the agent's work. None: all of it, in a fresh copy of the agent's sandbox."""
    has_task_files: bool = True
    """Whether their sandbox begins with the files of the task's environment."""


def verification(path: Path, read: Manifest, step: StepTable | None, image: str | ImageBuild | None) -> Verification:
    """Return how a task is verified, or one of its steps. `image`: the agent's. Raises TaskError."""
    own = Verifier() if step is None else step.verifier
    folders = [path / TESTS_FOLDER, *([] if step is None else [path / STEPS_FOLDER / step.name / TESTS_FOLDER])]
    tests = tuple(folder for folder in folders if folder.is_dir())
    separate = (own.mode or read.verifier.mode) is VerifierMode.SEPARATE
    declared = own.environment or read.verifier.environment
    place = declared if separate and declared is not None else read.environment
    own_image = _own_image(read, step, folders) if separate else None
    has_script = own_image is not None or any((folder / TEST).is_file() for folder in tests)
    phase = own if own.network_mode or own.user is not None else read.verifier
    spec = sandbox(structs.replace(place, workdir=place.workdir or read.environment.workdir), phase, own_image or image)
    if read.metadata.evener is not None and read.metadata.evener.read_only_root is False:
        spec = structs.replace(spec, read_only_root=False)  # what the agent wrote there may be needed
    if read.metadata.evener is not None and read.metadata.evener.tests_drop_rights:
        spec = structs.replace(spec, user="0:0", drops_rights=True)
    return Verification(
        tests=tests if own_image is None else (),
        has_script=has_script,
        sandbox=spec,
        seconds=own.timeout_sec or read.verifier.timeout_sec or TEST_SECONDS,
        env=read.verifier.env | own.env,
        healthcheck=place.healthcheck,
        handover=_handover(read, step, has_tests=own_image is not None) if separate else None,
        has_task_files=own_image is None,
    )


def _own_image(read: Manifest, step: StepTable | None, folders: list[Path]) -> str | ImageBuild | None:
    """Return the image that brings the tests: the step's, then the task's. None: neither has one."""
    environments: list[Environment | None] = [read.verifier.environment, *([] if step is None else [step.verifier.environment])]
    for environment, folder in reversed(list(zip(environments, folders, strict=True))):
        if environment is not None and environment.docker_image:
            return environment.docker_image
        if (folder / DOCKERFILE).is_file():
            return ImageBuild(context=str(folder), dockerfile=DOCKERFILE)
    return None


def _handover(read: Manifest, step: StepTable | None, *, has_tests: bool) -> Handover:
    artifacts = (*read.artifacts, *(() if step is None else step.artifacts))
    hooks = (*read.verifier.collect, *(() if step is None else step.verifier.collect))
    return Handover(artifacts=handed_over(artifacts), collect=hooks, has_tests=has_tests)
