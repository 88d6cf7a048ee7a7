"""What SWE-bench and its kin call things, as data. A new dialect is one entry."""

from typing import Final

from msgspec import Struct

from evener.tasks.tables import HistoryKept


class SweDialect(Struct, frozen=True, kw_only=True):
    """How the rows of a data set say what a repository task is.

    Templates may name `{instance_id}`, `{image_key}` (the id as image names have it), `{repo_name}` and `{base_commit}`.
    """

    image: str | None = None
    """The template of the image. None: only `image_columns` tell."""
    image_columns: tuple[str, ...] = ()
    """The columns that may name the image, before the template."""
    key_separator: str = "_1776_"
    """What replaces `__` in `{image_key}`."""
    workdir: str = "/testbed"
    """The template of the repository's folder."""
    activate: str = "source /opt/miniconda3/bin/activate testbed"
    """The shell command that makes the tests' programs available. Empty: they are."""
    test_command: str = "pytest -rA"
    """The command that runs the test files, which are appended."""
    test_command_column: str | None = None
    """The column with a command of the row's own."""
    parser_column: str | None = None
    """The column with the name of the parser of its output."""
    reversed_patch: bool = False
    """Whether `patch` plants the bug: the solution is its reverse."""
    prepare: str = ""
    """The template of a command that makes the image's repository the task's. Empty: it is."""
    tests_commit: str = "{base_commit}"
    """The template of the commit that has the test files as they were."""
    restores_counted: bool = False
    """Whether the files of the tests that count are put back from there too: there is no test patch."""
    history: HistoryKept = HistoryKept.BASE
    """How much of the repository's history the agent gets."""
    signs: tuple[str, ...] = ()
    """The columns by which rows of this dialect are known."""


SWE_DIALECTS: Final[dict[str, SweDialect]] = {
    "swe-rebench": SweDialect(
        image="swerebench/sweb.eval.x86_64.{image_key}:latest",
        image_columns=("image_name", "docker_image"),
        test_command_column="install_config.test_cmd",
        parser_column="install_config.log_parser",
        signs=("instance_id", "install_config", "FAIL_TO_PASS"),
    ),
    "swe-smith": SweDialect(
        image_columns=("image_name",),
        reversed_patch=True,
        prepare="git checkout -q {instance_id}",
        tests_commit="{instance_id}~1",  # the branch's last commit removes the tests that find the bug
        restores_counted=True,
        history=HistoryKept.NONE,  # the commit before has no bug
        signs=("instance_id", "image_name", "patch", "FAIL_TO_PASS"),
    ),
    "swe-bench": SweDialect(
        image="swebench/sweb.eval.x86_64.{image_key}:latest",
        image_columns=("image_name", "docker_image"),
        test_command_column="test_cmd",
        parser_column="log_parser",
        signs=("instance_id", "environment_setup_commit", "FAIL_TO_PASS"),
    ),
    "swe-gym": SweDialect(
        image="xingyaoww/sweb.eval.x86_64.{image_key}:latest",
        image_columns=("image_name", "docker_image"),
        key_separator="_s_",
        signs=("instance_id", "base_commit", "FAIL_TO_PASS"),
    ),
}
"""The dialects by name, those with more signs before those that they would be taken for."""
