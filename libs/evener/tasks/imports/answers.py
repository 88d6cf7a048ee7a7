"""Imports rows with a question and its answer: plain JSON lines, the shapes of the Hugging Face hub, verl's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from evener.tasks.directory import ANSWER, INSTRUCTION, MANIFEST
from evener.tasks.grader_table import MATCH_NAMES
from evener.tasks.imports.columns import ColumnMissing, first_of, name_of, toml
from evener.tasks.imports.port import DataRow, ImportOptions, RefusedRow, SourceUnreadable, TaskDraft
from evener.tasks.imports.read_rows import read_rows

PROMPT_COLUMNS: Final = (
    "prompt",
    "question",
    "problem",
    "instruction",
    "query",
    "input",
    "messages",
    "conversations",
    "responses_create_params.input",
)
ANSWER_COLUMNS: Final = (
    "answer",
    "ground_truth",
    "reward_model.ground_truth",
    "expected_answer",
    "expected",
    "target",
    "label",
    "answers",
    "solution",
)
JUDGE: Final = "judge"
HTTP: Final = "http"
MATCHES_OF_ROWS: Final = (*MATCH_NAMES, JUDGE, HTTP)
FINAL_MARK: Final = "####"
"""What GSM8K puts between its reasoning and the answer."""
_NUMBER: Final = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_BOXED: Final = re.compile(r"\\boxed\{([^{}]*)\}")


def import_answers(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:
    """Yield a task for each row. Raises SourceUnreadable."""
    if options.match is not None and options.match not in MATCHES_OF_ROWS:
        msg = f"--match {options.match!r} is not one of {', '.join(MATCHES_OF_ROWS)}"
        raise SourceUnreadable(msg)
    prefix = Path(source).stem
    for number, row in enumerate(read_rows(source, options.split)):
        name = name_of(row, number, options.name, prefix)
        try:
            yield TaskDraft(name=name, files=_files(row, options))
        except ColumnMissing as cause:
            yield RefusedRow(name=name, reason=str(cause))


def import_nemo_gym(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:
    """Yield a task for each row of NeMo Gym, which its resource server grades. Raises SourceUnreadable."""
    return import_answers(source, structs.replace(options, match=options.match or HTTP))


def _files(row: DataRow, options: ImportOptions) -> dict[str, bytes]:
    _, prompt = first_of(row, options.prompt, PROMPT_COLUMNS)
    files = {INSTRUCTION: _instruction(prompt).encode(errors="replace")}
    if options.match == HTTP:
        files["tests/row.json"] = msgspec.json.encode(row)
        return files | {MANIFEST: toml({"metadata.evener": {"grader": HTTP, "endpoint": options.endpoint, "body": "tests/row.json"}})}
    _, answer = first_of(row, options.answer, ANSWER_COLUMNS)
    table, oracle = _grader(_texts(answer), options)
    files[MANIFEST] = toml({"metadata.evener": table})
    if oracle is not None:
        files[f"solution/{ANSWER}"] = oracle.encode(errors="replace") + b"\n"
    return files


def _instruction(prompt: Any) -> str:
    """Return a prompt, or the text of messages that are not the assistant's. Raises ColumnMissing."""
    if isinstance(prompt, str):
        text = prompt
    elif isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt):
        said = [(message.get("role", message.get("from")), message.get("content", message.get("value"))) for message in prompt]
        text = "\n\n".join(_content(content) for role, content in said if role not in {"assistant", "gpt"})
    else:
        msg = f"its prompt is a {type(prompt).__name__}, neither text nor messages"
        raise ColumnMissing(msg)
    if not text.strip():
        msg = "its prompt is empty"
        raise ColumnMissing(msg)
    return text


def _content(content: Any) -> str:
    """Return the text of a message, which may be a list of parts."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def _texts(answer: Any) -> list[str]:
    """Return the right answers. Raises ColumnMissing."""
    given = answer if isinstance(answer, list) else [answer]
    if not given or not all(isinstance(one, str | int | float) for one in given) or not all(str(one).strip() for one in given):
        msg = "its answer is neither a text nor a number, nor a list of them"
        raise ColumnMissing(msg)
    return [_final(str(one).strip()) for one in given]


def _final(text: str) -> str:
    """Return the answer at the end of a worked solution: after GSM8K's mark, or in the last box of LaTeX."""
    if FINAL_MARK in text:
        return text.rpartition(FINAL_MARK)[2].strip()
    boxed: list[str] = _BOXED.findall(text)
    return boxed[-1].strip() if boxed else text


def _grader(answers: list[str], options: ImportOptions) -> tuple[dict[str, Any], str | None]:
    """Return the table of the grader, and an answer that is right. Raises ColumnMissing."""
    first = answers[0]
    match = options.match or ("number" if len(answers) == 1 and _NUMBER.fullmatch(first) else "exact")
    if match == JUDGE:
        return {"grader": JUDGE, "endpoint": options.endpoint, "rubric": options.rubric, "reference": " or ".join(answers)}, first
    if match == "number":
        numbers = [found[-1].replace(",", "") for one in answers if (found := _NUMBER.findall(one))]
        if len(numbers) != 1:
            msg = f"its answer {first[:60]!r} is not one number"
            raise ColumnMissing(msg)
        return {"expected": numbers[0], "match": match}, numbers[0]
    if match == "regex":
        return {"expected": "|".join(answers), "match": match}, None
    if len(answers) == 1:
        return {"expected": first, "match": match}, first
    alternatives = "|".join(re.escape(one) for one in answers)
    whole = alternatives if match == "contains" else rf"^\s*(?:{alternatives})\s*$"
    return {"expected": whole, "match": "regex"}, first
