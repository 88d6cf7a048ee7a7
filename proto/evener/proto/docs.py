"""What fields mean: the string after a field of a Struct, or else what its name or its type means everywhere."""

import ast
import inspect
import textwrap
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, Final, get_args, get_type_hints

from msgspec import Struct

WORDS: Final = {
    "at_least": "A group with fewer usable sessions fails.",
    "attempt": "The session's attempt; counts from 1.",
    "call_id": "Of the model call.",
    "choice": "Number of the answer among the n of its call, from 0.",
    "count": "How many.",
    "delivered": "Whether the group left for its topic.",
    "detail": "For people: what happened. Empty: nothing to add.",
    "digest": "SHA-256 of the content, lower-case hexadecimal.",
    "early_at": "M: the group is delivered as soon as M sessions are usable. None: when all N were seen.",
    "end": "The first element after it.",
    "engine_id": "Of the engine.",
    "exit_code": "None: it never ran, or nobody said. Negative: ended by that signal.",
    "failed_calls": "Calls that ended without an answer.",
    "grader": "Who scored it.",
    "group_id": "Of the group; it is the id of its task.",
    "harness_version": "The pinned version of the harness that ran. None: not known.",
    "headers": "Record headers: name and value.",
    "instance_id": "Of the instance: its process's name and its service.",
    "key": "The record's key.",
    "length": "Elements.",
    "max_concurrency": "Calls that it serves at a time.",
    "max_lag": "Oldest policy version, counted back from the newest, that may be merged. None: any.",
    "models": "Model name to target; `*` is the default. A name without an entry goes to the policy.",
    "n": "Answers asked for.",
    "name": "What it is called.",
    "offset": "Of the record in its partition.",
    "partition": "Of the topic.",
    "policy": "Name of the policy.",
    "prompt_tokens": "Length of the whole context that the engine is given.",
    "reason": "For people: why.",
    "request_id": "The relay's id of the harness's request.",
    "reward": "None: not graded.",
    "rows_digest": "Of the rows: equal rows have equal digests.",
    "run_id": "Of the run: one submission of tasks.",
    "runner_id": "Instance id of the sandbox-runner.",
    "sampled_tokens": "Tokens of all its answers.",
    "session_id": "Of the session.",
    "sessions": "By index.",
    "side_call": "The name of the signature that it met. None: the agent's own work.",
    "side_calls": "Model calls that were not the agent's work.",
    "size": "N: the sessions of the group.",
    "start": "The first element.",
    "start_id": "Of the runner's start of this attempt.",
    "stopping": "It takes no new work.",
    "streamed": "Whether the harness asked for a stream.",
    "task_id": "Of the task: the client's own, or drawn.",
    "topic": "Of the record.",
    "tries": "Gradings that were begun.",
    "undelivered": "The harness left before the answer was through.",
    "url": "Base URL.",
    "value": "The record's value.",
    "version": "Policy version.",
    "warm_images": "Images with a sandbox ready.",
}
"""Names that mean the same in every event."""
SUFFIXES: Final = {"_at": "Unix seconds.", "_seconds": "Seconds."}


@cache
def field_docs(struct: type[Struct]) -> dict[str, str]:
    """Return field name to its docstring on one line, inherited fields included. Fields without one are absent."""
    docs: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, Struct) and base is not Struct:
            docs |= _of_source(base)
    return docs


def meanings(struct: type[Struct]) -> dict[str, str]:
    """Return what each field means; an empty string where nothing says so."""
    own, types = field_docs(struct), get_type_hints(struct)
    return {name: own.get(name) or _by_type(types[name]) or _by_name(name) for name in struct.__struct_fields__}


def _by_name(name: str) -> str:
    return WORDS.get(name) or next((text for suffix, text in SUFFIXES.items() if name == suffix[1:] or name.endswith(suffix)), "")


def _by_type(annotation: Any) -> str:
    """Return the docstring of the Struct or enum in an annotation: `placement: Placement` needs no other words."""
    if isinstance(annotation, type) and issubclass(annotation, Struct | Enum):
        return " ".join((annotation.__doc__ or "").split())
    return next((text for inner in get_args(annotation) if (text := _by_type(inner))), "")


def _of_source(struct: type[Struct]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    docs = {}
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            text = after.value.value if isinstance(after.value, ast.Constant) else None
            if isinstance(text, str):
                docs[field.target.id] = " ".join(text.split())
    return docs
