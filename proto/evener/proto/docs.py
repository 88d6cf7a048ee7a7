"""The meaning of each field: its own docstring, or else what its name or its type means in every event."""

import ast
import inspect
import textwrap
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, Final, get_args, get_type_hints

from msgspec import Struct

WORDS: Final = {
    "attempt": "The session's attempt, counted from 1.",
    "call_id": "The id of the model call.",
    "choice": "The number of the answer among the n answers of its call, from 0.",
    "count": "The number of elements.",
    "detail": "What happened, in words. Empty: nothing to add.",
    "digest": "The SHA-256 of the content, in lower-case hexadecimal digits.",
    "end": "The position after the last element.",
    "engine_id": "The id of the engine.",
    "exit_code": "The exit code of the harness; negative if that signal ended it. None: it never ran, or nobody reported it.",
    "failed_calls": "The number of calls that ended without an answer.",
    "grader": "The name of the grader.",
    "group_id": "The id of the group, which is the id of its task.",
    "harness_version": "The pinned version of the harness that ran. None: not known.",
    "headers": "The record's headers, name to value.",
    "instance_id": "The id of the instance: the name of its process and its service.",
    "key": "The record's key.",
    "length": "The number of elements.",
    "max_concurrency": "The number of calls that the engine serves at a time.",
    "n": "The number of answers asked for.",
    "name": "The name.",
    "offset": "The offset of the record in its partition.",
    "partition": "The partition of the topic.",
    "policy": "The name of the policy.",
    "prompt_tokens": "The length of the whole context that the engine is given.",
    "reason": "The reason, in words.",
    "request_id": "The relay's id of the harness's request.",
    "rows_digest": "The digest of the rows. Equal rows have equal digests.",
    "run_id": "The id of the run, which is one submission of tasks.",
    "runner_id": "The instance id of the sandbox-runner.",
    "sampled_tokens": "The number of tokens in all answers of the call.",
    "session_id": "The id of the session.",
    "side_call": "The name of the side-call signature that the request matches. None: the call is the agent's own work.",
    "side_calls": "The number of model calls that were not the agent's work.",
    "size": "N: the number of sessions in the group.",
    "start": "The position of the first element.",
    "start_id": "The id of the runner's start of this attempt.",
    "stopping": "Whether the instance takes no new work.",
    "streamed": "Whether the harness asked for a stream.",
    "task_id": "The id of the task, the client's own or a drawn one.",
    "topic": "The topic of the record.",
    "tries": "The number of gradings that were begun.",
    "undelivered": "Whether the harness disconnected before the answer was delivered.",
    "url": "The base URL.",
    "version": "The policy version.",
}
"""Field names that mean the same in every event."""
SUFFIXES: Final = {"_at": "The time in Unix seconds.", "_seconds": "A duration in seconds."}


@cache
def field_docs(struct: type[Struct]) -> dict[str, str]:
    """Return a mapping from field name to docstring, on one line. Inherited fields are included, fields without a docstring are not."""
    docs: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, Struct) and base is not Struct:
            docs |= _of_source(base)
    return docs


def meanings(struct: type[Struct]) -> dict[str, str]:
    """Return the meaning of each field. It is empty where nothing documents the field."""
    own, types = field_docs(struct), get_type_hints(struct)
    return {name: own.get(name) or _by_type(types[name]) or _by_name(name) for name in struct.__struct_fields__}


def _by_name(name: str) -> str:
    return WORDS.get(name) or next((text for suffix, text in SUFFIXES.items() if name == suffix[1:] or name.endswith(suffix)), "")


def _by_type(annotation: Any) -> str:
    """Return the docstring of the Struct or enum in an annotation: a field such as `placement: Placement` needs no docstring of its own."""
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
