"""The digest of what a task asks of its sandbox: equal where the same sandbox serves."""

from pathlib import Path

from msgspec import structs

from evener.proto.sandbox import ImageBuild, Network, NetworkMode, SandboxLimits, SandboxSpec
from evener.tasks.sandbox_digest import sandbox_digest

SPEC = SandboxSpec(image="python:3.13", user="1000")


def build(folder: Path, content: str = "FROM evener-base\n") -> SandboxSpec:
    folder.mkdir()
    (folder / "Dockerfile").write_text(content)
    return SandboxSpec(image=ImageBuild(context=str(folder)))


def test_tasks_with_the_same_requirements_have_the_same_digest() -> None:
    assert sandbox_digest(SPEC) == sandbox_digest(SandboxSpec(image="python:3.13", user="1000"))


def test_every_requirement_counts() -> None:
    others = [
        SandboxSpec(),
        structs.replace(SPEC, image="python:3.12"),
        structs.replace(SPEC, user=None),
        structs.replace(SPEC, workdir="/srv"),
        structs.replace(SPEC, limits=SandboxLimits(memory_bytes=1 << 30)),
        structs.replace(SPEC, network=Network(mode=NetworkMode.PUBLIC)),
    ]

    assert len({sandbox_digest(each) for each in (SPEC, *others)}) == len(others) + 1


def test_image_that_is_built_counts_by_its_files(tmp_path: Path) -> None:
    """Each runner unpacks the task somewhere else."""
    here, there, other = build(tmp_path / "a"), build(tmp_path / "b"), build(tmp_path / "c", "FROM other\n")

    assert sandbox_digest(here) == sandbox_digest(there)
    assert sandbox_digest(here) != sandbox_digest(other)
