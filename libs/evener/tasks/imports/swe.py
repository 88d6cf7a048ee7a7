"""Imports rows in the shape of SWE-bench: a repository at a commit, and the tests that a fix must make pass.

The task's `tests/test.sh` puts the test files back as they were at the base commit, whatever the agent made of them, applies the test
patch, and runs the tests; the grader `test_log` reads which passed. The golden patch is the oracle.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.tasks.directory import COMPOSE_FILES, INSTRUCTION, MANIFEST, SOLVE
from evener.tasks.imports.columns import ColumnMissing, list_of, plain, text_of, toml, value_of
from evener.tasks.imports.port import DataRow, Importer, ImportOptions, RefusedRow, TaskDraft
from evener.tasks.imports.read_rows import read_rows
from evener.tasks.imports.swe_dialects import SWE_DIALECTS, SweDialect
from evener.tasks.swebench_parsers import swebench_parsers
from evener.tasks.test_markers import END, START
from evener.tasks.verification import DOCKERFILE

GIT_SECONDS: Final = 300.0
VERIFIER_SECONDS: Final = 1800.0
BASE: Final = "base"
"""The folder in `tests/` with the test files of the base commit, for repositories without a history."""
TOP_LEVEL: Final = "top_level"
"""The file in `tests/` with the names in the repository's own folder, likewise."""
PARSERS_OF_LOGS: Final = {"pytest": "pytest", "parse_log_pytest": "pytest", "unittest": "unittest", "parse_log_django": "unittest"}
"""What rows call the parsers of `evener.graders.log_parsers`."""
RUNNER_FILES: Final = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
    *("pyproject.toml", "setup.cfg"),
)
"""The files that change what a test runner does, wherever they are. No fix is expected in them."""
_PATCHED: Final = re.compile(r"^diff --git a/(.+?) b/(.+)$", re.MULTILINE)
_objects: Final = msgspec.json.Decoder(dict[str, Any])

TEST_SCRIPT: Final = """\
#!/bin/bash
# The test files, and what configures their runner, are put back as they were, then patched, and run.
tests="$(cd "$(dirname "$0")" && pwd)"
cd {workdir} || exit 1
{activate}
export GIT_NO_REPLACE_OBJECTS=1 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
restore() {{
    rm -rf -- "$1"
    if [ -e "$tests/{base}/$1" ]; then
        mkdir -p -- "$(dirname -- "$1")" && cp -- "$tests/{base}/$1" "$1" || exit 1
    elif git cat-file -e {commit}:"$1" 2>/dev/null; then
        mkdir -p -- "$(dirname -- "$1")" && git show {commit}:"$1" > "$1" || exit 1
    fi
}}
runners='(^|/)({runners})$'
{{
    find . -name .git -prune -o -type d -name node_modules -prune -o -print | sed 's|^\\./||' | grep -E "$runners"
    (cd "$tests/{base}" 2>/dev/null && find . -type f | sed 's|^\\./||')
    git ls-tree -r --name-only {commit} 2>/dev/null | grep -E "$runners"
}} | sort -u > "$tests/restored"
while IFS= read -r file; do restore "$file"; done < "$tests/restored"
is_base() {{
    if [ -e "$tests/{top_level}" ]; then grep -qxF -- "$1" "$tests/{top_level}"; else git cat-file -e {commit}:"$1" 2>/dev/null; fi
}}
if [ -e "$tests/{top_level}" ] || git cat-file -e {commit} 2>/dev/null; then
    # New modules that would take the place of Python's own, where the tests are started.
    for module in $(python3 -I -c 'import os; print(*{{name.split(".")[0] for name in os.listdir(os.path.dirname(os.__file__))}})'); do
        for place in "$module" "$module.py"; do
            if [ -e "$place" ] && ! is_base "$place"; then rm -rf -- "$place"; fi
        done
    done
fi
for file in {patched}; do restore "$file"; done
if [ -s "$tests/test.patch" ]; then
    git apply --whitespace=nowarn "$tests/test.patch" || patch --batch --forward -p1 -i "$tests/test.patch" || exit 1
fi
echo '{start}'
{command}
echo '{end}'
"""
SOLVE_SCRIPT: Final = """\
#!/bin/bash
solution="$(cd "$(dirname "$0")" && pwd)"
cd {workdir} || exit 1
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
git apply {reverse}--whitespace=nowarn "$solution/gold.patch" || patch --batch --forward {reverse}-p1 -i "$solution/gold.patch"
"""


def importer_of(dialect: SweDialect) -> Importer:
    """Return the importer of a dialect's rows."""

    def import_swe(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:
        for number, row in enumerate(read_rows(source, options.split)):
            name = plain(str(row.get("instance_id", ""))) or f"row-{number:05d}"
            try:
                yield TaskDraft(name=name, files=_files(_unfolded(row), dialect, options))
            except (ColumnMissing, KeyError, IndexError) as cause:
                yield RefusedRow(
                    name=name, reason=str(cause) if isinstance(cause, ColumnMissing) else f"unknown field {cause} in a template"
                )

    return import_swe


def _unfolded(row: DataRow) -> DataRow:
    """Return a row whose `install_config` is an object, which some data sets have as JSON."""
    config = row.get("install_config")
    if not isinstance(config, str):
        return row
    try:
        return row | {"install_config": _objects.decode(config)}
    except msgspec.DecodeError as cause:
        msg = f"its column 'install_config' is no JSON object: {cause}"
        raise ColumnMissing(msg) from cause


def _files(row: DataRow, dialect: SweDialect, options: ImportOptions) -> dict[str, bytes]:
    names = _names(row, dialect)
    workdir = dialect.workdir.format(**names)
    test_patch = value_of(row, "test_patch") or ""
    patched = sorted({after for _, after in _PATCHED.findall(test_patch)})
    failing, passing = list_of(row, "FAIL_TO_PASS"), list_of(row, "PASS_TO_PASS")
    if not failing:
        msg = "its column 'FAIL_TO_PASS' names no test"
        raise ColumnMissing(msg)
    counted = patched or sorted({test.partition("::")[0] for test in (*failing, *passing) if "::" in test})
    local = options.repositories is not None
    script = TEST_SCRIPT.format(
        workdir=shlex.quote(workdir),
        activate="" if local else dialect.activate,
        patched=" ".join(map(shlex.quote, sorted({*patched, *(counted if dialect.restores_counted else ())}))),
        base=BASE,
        top_level=TOP_LEVEL,
        commit=shlex.quote(dialect.tests_commit.format(**names)),
        runners="|".join(map(re.escape, RUNNER_FILES)),
        command=_command(row, dialect, counted),
        start=START,
        end=END,
    )
    expected = {"parser": _parser(row, dialect), "fail_to_pass": failing, "pass_to_pass": passing}
    reverse = "-R " if dialect.reversed_patch else ""
    files = {
        INSTRUCTION: text_of(row, "problem_statement").encode(errors="replace"),
        "tests/test.sh": script.encode(),
        "tests/test.patch": test_patch.encode(),
        "tests/expected.json": msgspec.json.encode(expected),
        f"solution/{SOLVE}": SOLVE_SCRIPT.format(workdir=shlex.quote(workdir), reverse=reverse).encode(),
        "solution/gold.patch": text_of(row, "patch").encode(),
    }
    place = {"workdir": workdir}
    if options.repositories is not None:
        files |= _of_clone(options.repositories, names, patched)
    elif dialect.prepare:
        files["environment/Dockerfile"] = _dockerfile(_image(row, dialect, options, names), workdir, dialect.prepare.format(**names))
    else:
        place["docker_image"] = _image(row, dialect, options, names)
    tables: dict[str, dict[str, Any]] = {
        "task": {"name": names["instance_id"]},
        "verifier": {"timeout_sec": VERIFIER_SECONDS},
        "environment": place,
        "metadata.evener": {"grader": "test_log", "expected": "expected.json"},
        "metadata.evener.clean": {} if local else {"repositories": [workdir], "history": dialect.history.value},
    }
    return files | {MANIFEST: toml(tables)}


def _names(row: DataRow, dialect: SweDialect) -> dict[str, str]:
    """Return what templates may name."""
    instance = text_of(row, "instance_id")
    repository = text_of(row, "repo")
    return {
        "instance_id": instance,
        "image_key": instance.lower().replace("__", dialect.key_separator),
        "repo": repository,
        "repo_name": repository.rpartition("/")[2],
        "base_commit": _commit(row),
    }


def _commit(row: DataRow) -> str:
    """Return the base commit. Raises ColumnMissing for what git could take for an option."""
    commit = str(row.get("base_commit") or "HEAD")
    if commit.startswith("-"):
        msg = f"its base_commit is {commit!r}"
        raise ColumnMissing(msg)
    return commit


def _image(row: DataRow, dialect: SweDialect, options: ImportOptions, names: dict[str, str]) -> str:
    if options.image is not None:
        return options.image.format(**names)
    for column in dialect.image_columns:
        if isinstance(image := value_of(row, column), str) and image:
            return image
    if dialect.image is None:
        msg = f"it names no image ({', '.join(dialect.image_columns)})"
        raise ColumnMissing(msg)
    return dialect.image.format(**names)


def _command(row: DataRow, dialect: SweDialect, files: list[str]) -> str:
    own = value_of(row, dialect.test_command_column) if dialect.test_command_column else None
    commands = own if isinstance(own, list) else [own or dialect.test_command]
    return "\n".join((*map(str, commands[:-1]), f"{commands[-1]} {' '.join(map(shlex.quote, files))}"))


def _parser(row: DataRow, dialect: SweDialect) -> str:
    """Return the parser of the tests' output. Raises ColumnMissing for one that is not there."""
    named = value_of(row, dialect.parser_column) if dialect.parser_column else None
    if named is None:
        return "pytest"
    if named in PARSERS_OF_LOGS:
        return PARSERS_OF_LOGS[named]
    if named in (theirs := swebench_parsers()):
        return str(named)
    more = "" if theirs else "; the package `swebench`, which has more, is not installed (pip install 'evener[sources]')"
    msg = f"no parser reads logs of {named!r}; there are {', '.join((*PARSERS_OF_LOGS, *theirs))}{more}"
    raise ColumnMissing(msg)


def _dockerfile(image: str, workdir: str, prepare: str) -> bytes:
    return f"FROM {image}\nWORKDIR {workdir}\nRUN {prepare}\n".encode()


def _of_clone(folder: Path, names: dict[str, str], patched: list[str]) -> dict[str, bytes]:
    """Return the files of the base commit, without its history, and the test files among them. Raises ColumnMissing."""
    owner_name = names["repo"].replace("/", "__")
    clone = next((path for name in (owner_name, names["repo_name"]) if (path := folder / name).is_dir()), None)
    if clone is None:
        msg = f"{folder} has no clone {owner_name} or {names['repo_name']}"
        raise ColumnMissing(msg)
    entries = [entry.split(b"\t", 1) for entry in _git(clone, "ls-tree", "-r", "-z", names["base_commit"]).split(b"\0") if entry]
    blobs = [(place.decode(errors="surrogateescape"), facts.split()[2]) for facts, place in entries if facts.startswith(b"100")]
    contents = _contents(clone, [blob for _, blob in blobs])
    files = {f"environment/{place}": content for (place, _), content in zip(blobs, contents, strict=True)}
    if made := sorted({DOCKERFILE, *COMPOSE_FILES} & {place for place, _ in blobs}):
        msg = f"its repository has a {made[0]}, which would be taken for the task's own: use an image"
        raise ColumnMissing(msg)
    kept = [name for name, _ in blobs if name in patched or name.rpartition("/")[2] in RUNNER_FILES]
    top_level = "".join(f"{name}\n" for name in sorted({name.partition("/")[0] for name, _ in blobs}))
    files |= {f"tests/{BASE}/{name}": files[f"environment/{name}"] for name in kept}
    return files | {f"tests/{TOP_LEVEL}": top_level.encode(errors="surrogateescape")}


def _contents(clone: Path, blobs: list[bytes]) -> list[bytes]:
    """Return the contents of blobs, by one process."""
    told = _git(clone, "cat-file", "--batch", given=b"\n".join(blobs))
    contents: list[bytes] = []
    at = 0
    for _ in blobs:
        end = told.index(b"\n", at)
        size = int(told[at:end].split()[2])
        contents.append(told[end + 1 : end + 1 + size])
        at = end + size + 2
    return contents


def _git(clone: Path, *words: str, given: bytes = b"") -> bytes:
    command = ("git", "-C", str(clone), *words)
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=GIT_SECONDS, input=given).stdout
    except (OSError, subprocess.SubprocessError) as cause:
        said = getattr(cause, "stderr", None) or str(cause).encode()
        msg = f"git {words[0]} in {clone}: {said.decode(errors='replace').strip()}"
        raise ColumnMissing(msg) from cause


SWE_IMPORTERS: Final[dict[str, Callable[[str, ImportOptions], Iterator[TaskDraft | RefusedRow]]]] = {
    name: importer_of(dialect) for name, dialect in SWE_DIALECTS.items()
}
