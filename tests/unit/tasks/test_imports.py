"""Imports of what people publish: small files of each shape."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.swe_rows import rebench, repository, row, written

from evener.proto.sandbox import ImageBuild
from evener.tasks.directory import Task, bundled, find, load
from evener.tasks.errors import TaskError
from evener.tasks.imports.port import ImportOptions, RefusedRow, SourceUnreadable
from evener.tasks.imports.registry import format_of_source, importer_for
from evener.tasks.imports.writing import import_into
from evener.tasks.pack import pack


def imported(source: Path, out: Path, **options: Any) -> dict[str, Task | str]:
    """Import a source by what it looks like; return each task, or why it was refused."""
    kind = format_of_source(str(source))
    found = import_into(out, importer_for(kind), str(source), ImportOptions(**options))
    return {one.name if isinstance(one, RefusedRow) else one.path.name: one.reason if isinstance(one, RefusedRow) else one for one in found}


def task_of(source: Path, out: Path, **options: Any) -> Task:
    (task,) = imported(source, out, **options).values()
    assert isinstance(task, Task), task
    return task


def oracle(task: Task) -> str:
    assert task.solution is not None
    return (task.solution / "answer.txt").read_text().rstrip("\n")


@pytest.mark.parametrize(
    ("given", "grader", "solved"),
    [
        ({"prompt": "2+2?", "answer": "4"}, {"expected": "4", "match": "number"}, "4"),
        ({"question": "2+2?", "answer": "It is 2+2.\n#### 1,004"}, {"expected": "1004", "match": "number"}, "1004"),
        ({"problem": "?", "solution": "so \\boxed{\\pi}"}, {"expected": "\\pi", "match": "exact"}, "\\pi"),
        ({"prompt": "?", "ground_truth": "Paris"}, {"expected": "Paris", "match": "exact"}, "Paris"),
        ({"prompt": "?", "answer": 0.5}, {"expected": "0.5", "match": "number"}, "0.5"),
        ({"question": "?", "answers": ["a.b", "c"]}, {"expected": "^\\s*(?:a\\.b|c)\\s*$", "match": "regex"}, "a.b"),
        ({"prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": "x"}}, {"expected": "x", "match": "exact"}, "x"),
    ],
)
def test_rows_in_the_shapes_that_people_publish(tmp_path: Path, given: dict[str, Any], grader: dict[str, str], solved: str) -> None:
    """GSM8K's mark, LaTeX's box, several right answers, verl's nested field."""
    task = task_of(written(tmp_path / "rows.jsonl", given), tmp_path / "out")

    assert (task.grader.name, task.grader.options) == ("answer", grader)
    assert oracle(task) == solved
    assert task.path.name == "rows-00000"


@pytest.mark.parametrize(
    ("options", "name", "grader", "solved"),
    [
        ({"match": "contains"}, "answer", {"expected": "It is 7 (seven)", "match": "contains"}, "It is 7 (seven)"),
        ({"match": "number"}, "answer", {"expected": "7", "match": "number"}, "7"),
        ({"match": "regex"}, "answer", {"expected": "It is 7 (seven)", "match": "regex"}, None),
        (
            {"match": "judge", "endpoint": "big", "rubric": "Same?"},
            "judge",
            {"endpoint": "big", "rubric": "Same?", "reference": "It is 7 (seven)"},
            "It is 7 (seven)",
        ),
        ({"match": "http", "endpoint": "verify"}, "http", {"endpoint": "verify", "body": "tests/row.json"}, None),
    ],
)
def test_answers_are_compared_as_the_user_says(
    tmp_path: Path, options: dict[str, str], name: str, grader: dict[str, str], solved: str | None
) -> None:
    given = {"ask": {"text": "3+4?"}, "key": "It is 7 (seven)", "id": "Q 1/2"}
    source = written(tmp_path / "rows.jsonl", given)
    task = task_of(source, tmp_path / "out", prompt="ask.text", answer="key", **options)

    assert (task.instruction, task.path.name) == ("3+4?", "Q-1-2")
    assert (task.grader.name, task.grader.options) == (name, grader)
    assert (None if task.solution is None else oracle(task)) == solved
    if name == "http":
        assert json.loads((task.path / "tests/row.json").read_text()) == given
    pack(task.path)


def test_row_of_nemo_gym_is_graded_by_its_resource_server(tmp_path: Path) -> None:
    """It is sent whole; what the agent is told are the messages, in either form."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]}]
    given = {"responses_create_params": {"input": messages}, "agent_ref": {"name": "math"}, "expected_answer": "4", "uuid": "u-1"}
    task = task_of(written(tmp_path / "rows.jsonl", given), tmp_path / "out", endpoint="math")

    assert (task.instruction, task.path.name) == ("Be brief.\n\n2+2?", "u-1")
    assert (task.grader.name, task.grader.options) == ("http", {"endpoint": "math", "body": "tests/row.json"})
    assert json.loads((task.path / "tests/row.json").read_text()) == given


def test_row_that_is_no_task_is_refused_and_the_others_are_imported(tmp_path: Path) -> None:
    """Each with its reason; nothing of it is left."""
    good = {"prompt": "?", "answer": "a", "id": "good"}
    rows = (
        {"id": "asks-nothing", "prompt": " ", "answer": "a"},
        {"id": "no-answer", "prompt": "?"},
        {"id": "odd-answer", "prompt": "?", "answer": {"a": 1}},
        {"id": "good", "prompt": "another", "answer": "b"},
        {"id": "slow", "prompt": "?", "answer": "a{99999999999}"},
    )
    found = imported(written(tmp_path / "rows.jsonl", good, *rows[:4]), tmp_path / "out")
    slow = imported(written(tmp_path / "slow.jsonl", rows[4]), tmp_path / "out", match="regex")

    assert found["asks-nothing"] == "its prompt is empty"
    assert str(found["no-answer"]).startswith("it has none of the columns answer, ground_truth")
    assert found["odd-answer"] == "its answer is neither a text nor a number, nor a list of them"
    assert found["good"] == "another task of this source has this name"
    assert "not a regular" in str(slow["slow"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good"]
    assert load(tmp_path / "out/good").instruction == "?"


def test_the_same_import_again_changes_nothing(tmp_path: Path) -> None:
    """Digests stay, so that runs of these tasks are comparable."""
    source = written(tmp_path / "rows.jsonl", {"prompt": "?", "answer": 'a "quoted"\n\\ \x7f text'})
    first = pack(task_of(source, tmp_path / "out").path)
    again = pack(task_of(source, tmp_path / "out").path)

    assert first.ref == again.ref
    assert load(tmp_path / "out/rows-00000").grader.options["expected"] == 'a "quoted"\n\\ \x7f text'


def test_rows_of_parquet_and_json_and_folders_of_them(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.Table.from_pylist([{"question": "?", "answer": "1"}]), tmp_path / "rows/a.parquet")
    (tmp_path / "rows/b.json").write_text(json.dumps([{"question": "?", "answer": "2"}]))
    found = imported(tmp_path / "rows", tmp_path / "out", limit=5)

    assert {name: oracle(task) for name, task in found.items() if isinstance(task, Task)} == {"rows-00000": "1", "rows-00001": "2"}
    assert len(imported(tmp_path / "rows", tmp_path / "few", limit=1)) == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rows.jsonl", '{"a": 1}\n{"a": \n', "line 2"),
        ("rows.json", '{"a": 1}', "Expected `array`"),
        ("rows.parquet", "PAR?", "rows.parquet"),
    ],
)
def test_damaged_file_is_named_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceUnreadable, match=said):
        imported(tmp_path / name, tmp_path / "out")


def test_source_that_is_none_is_refused(tmp_path: Path) -> None:
    """A wrong path, an empty folder, a wrong format or comparison."""
    (tmp_path / "empty").mkdir()
    source = written(tmp_path / "rows.jsonl", {"prompt": "?", "answer": "a"})
    for wrong in (tmp_path / "nothing", tmp_path / "empty"):
        with pytest.raises(SourceUnreadable):
            imported(wrong, tmp_path / "out")
    with pytest.raises(SourceUnreadable, match="did you mean 'swe-bench'"):
        importer_for("swebench")
    with pytest.raises(SourceUnreadable, match="--match 'fuzzy' is not one of"):
        imported(source, tmp_path / "out", match="fuzzy")


def test_harbor_directories_are_imported_whole(tmp_path: Path) -> None:
    """The same files, so the same digests."""
    found = imported(bundled(), tmp_path / "out")

    assert {pack(path).ref for path in find(tmp_path / "out")} == {pack(path).ref for path in find(bundled())}
    assert len(found) == len(find(bundled()))


HARBOR = """#!/bin/sh
[ "$*" = "dataset download $3 --export --output-dir $6" ] || exit 2
[ "$3" = small@1 ] || { echo "Error: no data set $3"; exit 1; }
mkdir -p "$6/small/one/tests" && echo "Do it." > "$6/small/one/instruction.md" && touch "$6/small/one/tests/test.sh"
"""
"""Stands for the real program, which needs another Python: the same words, the same folders, the same exit codes."""


def test_data_set_of_harbors_registry_is_downloaded_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceUnreadable, match="needs the program `harbor`"):
        tasks_named("harbor:small@1", tmp_path / "out")
    program = tmp_path / "bin/harbor"
    program.parent.mkdir()
    program.write_text(HARBOR)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    assert tasks_named("harbor:small@1", tmp_path / "out") == ["one"]
    with pytest.raises(SourceUnreadable, match="harbor:other: Error: no data set other"):
        tasks_named("harbor:other", tmp_path / "out")


def tasks_named(source: str, out: Path) -> list[str]:
    return [
        one.path.name for one in import_into(out, importer_for(format_of_source(source)), source, ImportOptions()) if isinstance(one, Task)
    ]


def test_harbor_directory_with_a_fault_is_refused(tmp_path: Path) -> None:
    task = tmp_path / "tasks/one"
    task.mkdir(parents=True)
    (task / "instruction.md").write_text("Go.")
    (task / "outside").symlink_to("/etc/passwd")

    assert "a link that leaves" in str(imported(tmp_path / "tasks", tmp_path / "out")["one"])


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "clones", repository(tmp_path / "clones")


@pytest.mark.parametrize(
    ("kind", "changed", "image"),
    [
        ("swe-bench", {}, "swebench/sweb.eval.x86_64.people_1776_calc-1:latest"),
        ("swe-gym", {"environment_setup_commit": None}, "xingyaoww/sweb.eval.x86_64.people_s_calc-1:latest"),
        ("swe-rebench", {"install_config": {}, "docker_image": "rebench/x:1"}, "rebench/x:1"),
        ("swe-smith", {"environment_setup_commit": None, "base_commit": None, "image_name": "smith/x"}, None),
    ],
)
def test_dialect_of_rows_is_known_by_their_columns(
    tmp_path: Path, clones: tuple[Path, str], kind: str, changed: dict[str, Any], image: str | None
) -> None:
    """And tells the image and the folder of the repository; SWE-smith's is made of an image and the bug's branch."""
    given = {column: value for column, value in (row(*clones) | changed).items() if value is not None}
    source = written(tmp_path / "rows.jsonl", given)
    task = task_of(source, tmp_path / "out")

    assert format_of_source(str(source)) == kind
    assert (task.sandbox.workdir, task.grader.name) == ("/testbed", "test_log")
    if image is None:
        assert isinstance(task.sandbox.image, ImageBuild)
        dockerfile = (Path(task.sandbox.image.context) / "Dockerfile").read_text()
        assert dockerfile == "FROM smith/x\nWORKDIR /testbed\nRUN git checkout -q people__calc-1\n"
        assert "git show 'people__calc-1~1':" in (task.path / "tests/test.sh").read_text()
        assert "git apply -R" in (task.path / "solution/solve.sh").read_text()
    else:
        assert task.sandbox.image == image
    assert task_of(source, tmp_path / "own", image="mine/{repo_name}:{image_key}").path.exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"FAIL_TO_PASS": "[]"}, "names no test"),
        ({"FAIL_TO_PASS": "none"}, "is no list of texts"),
        ({"problem_statement": None}, "'problem_statement' is missing"),
        ({"install_config": {"log_parser": "parse_log_ruby"}}, "no parser reads logs of 'parse_log_ruby'"),
        ({"install_config": "{"}, "'install_config' is no JSON object"),
        ({"base_commit": "--output=/tmp/x"}, "its base_commit is"),
    ],
)
def test_repository_row_that_is_wrong_is_refused(tmp_path: Path, clones: tuple[Path, str], changed: dict[str, Any], said: str) -> None:
    source = written(tmp_path / "rows.jsonl", row(*clones) | changed)

    assert said in str(imported(source, tmp_path / "out")["people__calc-1"])


def test_task_of_a_clone_has_its_base_commit_and_nothing_of_its_future(tmp_path: Path, clones: tuple[Path, str]) -> None:
    """No history, no fix, no new test where the agent sees it."""
    task = task_of(written(tmp_path / "rows.jsonl", rebench(*clones)), tmp_path / "out", repositories=clones[0])

    assert task.environment is not None
    files = {path.relative_to(task.environment).as_posix(): path.read_text() for path in task.environment.rglob("*") if path.is_file()}
    assert set(files) == {"calc.py", "conftest.py", "tests/test_calc.py"}
    assert "a - b" in files["calc.py"]
    assert "test_add" not in files["tests/test_calc.py"]
    assert task.sandbox.image is None
    with pytest.raises(TaskError):
        find(tmp_path / "clones")


def test_clone_that_is_missing_is_named(tmp_path: Path, clones: tuple[Path, str]) -> None:
    source = written(tmp_path / "rows.jsonl", rebench(*clones, repo="others/tool"), rebench(*clones, instance_id="b", base_commit="0" * 40))
    found = imported(source, tmp_path / "out", repositories=clones[0])

    assert "has no clone others__tool or tool" in str(found["people__calc-1"])
    assert "git ls-tree in" in str(found["b"])


TERMINAL_BENCH = {
    "task.yaml": "instruction: |-\n  Write 42 to answer.txt.\ndifficulty: easy\nparser_name: pytest\nmax_agent_timeout_sec: 90\n",
    "docker-compose.yaml": """
services:
  client:
    build: {dockerfile: Dockerfile}
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    working_dir: /work
    environment: ["TEST_DIR=${T_BENCH_TEST_DIR}", "LEVEL=2"]
""",
    "Dockerfile": "FROM scratch\n",
    "given.txt": "given",
    "run-tests.sh": "python3 -m pytest -rA $TEST_DIR/test_outputs.py",
    "tests/test_outputs.py": "def test_answer():\n    assert open('answer.txt').read() == '42'\n",
    "solution.yaml": "- command: printf 42 > answer.txt\n  min_timeout_sec: 1\n- command: ls\n",
}


def terminal_bench(folder: Path, **changed: str) -> Path:
    for name, text in (TERMINAL_BENCH | changed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_directory_of_terminal_bench_1_is_imported(tmp_path: Path) -> None:
    """Its tests and its solution never lie where the agent works; all tests must pass."""
    terminal_bench(tmp_path / "set/one")
    terminal_bench(tmp_path / "set/two", **{"solution.sh": "#!/bin/bash\ntrue\n"})
    found = imported(tmp_path / "set", tmp_path / "out")
    task = found["one"]
    assert isinstance(task, Task)

    assert (task.instruction, task.agent_seconds, task.verification.seconds) == ("Write 42 to answer.txt.", 90, 60)
    assert isinstance(task.sandbox.image, ImageBuild)
    assert (task.sandbox.workdir, task.env) == ("/work", {"LEVEL": "2"})
    assert {path.name for path in (task.path / "environment").iterdir()} == {"Dockerfile", "given.txt"}
    assert {path.name for path in (task.path / "tests").iterdir()} == {"test.sh", "run-tests.sh", "test_outputs.py", "expected.json"}
    assert (task.path / "solution/solve.sh").read_text() == "#!/bin/bash\nprintf 42 > answer.txt\nls\n"
    assert isinstance(found["two"], Task)
    assert (found["two"].path / "solution/solve.sh").read_text() == "#!/bin/bash\ntrue\n"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"docker-compose.yaml": "services: {a: {image: x}, b: {image: y}}"}, "has 2 services, not one"),
        ({"docker-compose.yaml": "services: {a: {image: x, privileged: true}}"}, "its service has 'privileged'"),
        ({"task.yaml": "instruction: x\nparser_name: swebench\n"}, "no parser reads the output of its tests (swebench)"),
        ({"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"}, "run in the shell of the agent"),
        ({"task.yaml": "instruction: [\n"}, "task.yaml: while parsing"),
        ({"task.yaml": "difficulty: easy\n"}, "missing required field `instruction`"),
    ],
)
def test_directory_of_terminal_bench_1_that_cannot_be_run_is_refused(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    (reason,) = imported(terminal_bench(tmp_path / "one", **changed), tmp_path / "out").values()

    assert isinstance(reason, str)
    assert said in reason


R2E_ROW = {
    "repo_name": "calc",
    "docker_image": "namanjain12/calc_final:abc",
    "commit_hash": "abc",
    "problem_statement": "add() subtracts.",
    "expected_output_json": json.dumps({"TestCalc.test_add": "PASSED", "test_old": "FAILED"}),
}


def test_row_of_r2e_gym_has_its_tests_in_the_verifiers_image_alone(tmp_path: Path) -> None:
    task = task_of(written(tmp_path / "rows.jsonl", R2E_ROW), tmp_path / "out")
    agent = (task.path / "environment/Dockerfile").read_text()

    assert task.path.name == "calc-abc"
    assert agent.startswith("FROM namanjain12/calc_final:abc\nRUN rm -rf /run_tests.sh /r2e_tests /testbed/run_tests.sh")
    assert isinstance(task.verification.sandbox.image, ImageBuild)
    assert task.verification.sandbox.image.context == str(task.path / "tests")
    assert task.verification.handover is not None
    assert [artifact.source for artifact in task.verification.handover.artifacts] == ["/logs/artifacts", "/testbed"]
    assert json.loads((task.path / "tests/expected.json").read_text()) == {
        "parser": "r2e",
        "exactly": {"TestCalc.test_add": True, "test_old": False},
    }


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"expected_output_json": "[]"}, "no object of states"), ({"docker_image": "a\nRUN x"}, "its docker_image is")],
)
def test_row_of_r2e_gym_that_is_wrong_is_refused(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    (reason,) = imported(written(tmp_path / "rows.jsonl", R2E_ROW | changed), tmp_path / "out").values()

    assert isinstance(reason, str)
    assert said in reason
