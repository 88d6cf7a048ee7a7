"""Checks what a client submits. Every refusal names the field and a correct value."""

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from evener.client.views import Submission
from evener.graders.offer import GraderNeed, lacking, needs_of, spec_problem
from evener.graders.port import GraderRefused
from evener.graders.registry import GRADERS
from evener.harnesses.mcp import not_taken
from evener.harnesses.port import HarnessError
from evener.harnesses.registry import harness
from evener.proto.errors import EvenerError
from evener.proto.fleet import Heartbeat
from evener.proto.ids import TASK_ID_PATTERN
from evener.proto.patterns import BadPattern, text_pattern
from evener.proto.prepared import Converter
from evener.proto.spec import HarnessSpec, Quirks, Target
from evener.proto.tasks import TaskOptions, group_problem
from evener.sandboxes.registry import BACKENDS, lacks
from evener.scheduler.sandbox_kinds import opens
from evener.tasks.directory import Task
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked
from evener.tasks.sandbox_digest import sandbox_digest
from evener.tokens.session import NO_SANDBOX

MAX_NUMBER: Final = 2**63
_FIELD: Final = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")

BodyT = TypeVar("BodyT")


class TaskNeeds(Struct, frozen=True, kw_only=True):
    """What others must have for a task."""

    graders: tuple[GraderNeed, ...]
    """What its grader needs of an evaluator."""
    sandbox_digest: str = ""
    """The digest of what it asks of its sandbox. Empty: it has none."""


class SubmissionRefused(EvenerError):
    """Correct the request and send it again."""

    def __init__(self, what: str, field: str | None = None) -> None:
        super().__init__(what)
        self.field = field


def parse(body: bytes, wanted: Converter[BodyT]) -> BodyT:
    """Return the request in a JSON body, in which every key must be known. Raises Refused."""
    try:
        raw = msgspec.json.decode(body)
        _check_numbers(raw)
        value = wanted.convert(raw)
    except msgspec.ValidationError as cause:
        what, field = _place(str(cause))
        raise SubmissionRefused(what, field) from cause
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        msg = f"the body is not JSON: {cause}"
        raise SubmissionRefused(msg) from cause
    if unknown := unknown_field(raw, value):
        msg = f"unknown field {unknown}"
        raise SubmissionRefused(msg, unknown)
    return value


def _check_numbers(raw: Any, path: str = "") -> None:
    """Refuse integers that no record can hold."""
    if isinstance(raw, int) and not -MAX_NUMBER <= raw < MAX_NUMBER:
        _refuse("whole numbers have at most 64 bits, the sign among them", path)
    parts = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for name, part in parts:
        _check_numbers(part, f"{path}.{name}".lstrip("."))


def unknown_field(raw: Any, value: object, path: str = "") -> str | None:
    """Return the path of the first key in `raw` that the Struct `value`, made from it, does not have. None: all are known."""
    if isinstance(value, Struct):
        pairs = {name: (part, getattr(value, name, None)) for name, part in raw.items()}
        unknown = sorted(pairs.keys() - set(value.__struct_fields__))
        if unknown:
            return f"{path}{unknown[0]}"
    elif isinstance(value, dict):
        pairs = {str(name): (part, value[name]) for name, part in raw.items()}
    elif isinstance(value, list | tuple):
        pairs = {str(index): pair for index, pair in enumerate(zip(raw, value, strict=True))}
    else:
        return None
    found = (unknown_field(part, made, f"{path}{name}.") for name, (part, made) in pairs.items())
    return next((field for field in found if field), None)


def check(submission: Submission) -> None:
    """Refuse unknown names, bad patterns, and options that contradict each other. Raises Refused. Blocks: call it in a thread."""
    options = submission.options
    if submission.task_id is not None and not TASK_ID_PATTERN.match(submission.task_id):
        _refuse("a task id has 1 to 100 letters, digits, '.', '_' and '-', and begins with a letter or digit", "task_id")
    _check_harness(options.harness)
    if options.harness.sandbox not in {*BACKENDS, NO_SANDBOX}:
        known = ", ".join((*BACKENDS, NO_SANDBOX))
        _refuse(f"unknown sandbox {options.harness.sandbox!r}: there are {known}", "options.harness.sandbox")
    if submission.task is None and options.harness.sandbox != NO_SANDBOX:
        _refuse("only a recording (options.harness.sandbox = 'none') goes without a task", "task")
    if options.grader.name not in GRADERS:
        _refuse(f"unknown grader {options.grader.name!r}: there are {', '.join(sorted(GRADERS))}", "options.grader.name")
    if submission.task is None and options.grader.name == "harbor":
        _refuse("the grader `harbor` runs the task's tests/test.sh, and there is no task", "options.grader.name")
    if (problem := group_problem(options)) is not None:
        field, what = problem
        _refuse(what, f"options.group.{field}")
    for model, target in options.models.items():
        _check_target(model, target, options.policy)
    _check_patterns(options)
    if (wrong := spec_problem(options.grader)) is not None:
        _refuse(wrong, "options.grader")


def check_policies(options: TaskOptions, gateways: Iterable[Heartbeat]) -> None:
    """Refuse a policy that a living gateway lacks: sessions could come to that one. Raises Refused. Without a gateway nothing is known."""
    beats = tuple(gateways)
    known = {policy for gateway in beats for policy in gateway.policies}
    targets = {f"options.models.{model}": target.policy for model, target in options.models.items()}
    for field, policy in {"options.policy": options.policy, **targets}.items():
        if known and policy is not None and policy not in known:
            _refuse(f"no gateway knows the policy {policy!r} (known: {', '.join(sorted(known))})", field)
        lacking = sorted(gateway.instance_id for gateway in beats if policy not in {None, *gateway.policies})
        if lacking:
            _refuse(f"the policy {policy!r} is not known to all gateways yet: {', '.join(lacking)} lacks it", field)


def check_sandbox(name: str, runners: Iterable[Heartbeat]) -> None:
    """Refuse a sandbox that no living runner can open. Raises Refused. Without a runner nothing is known."""
    beats = tuple(runners)
    if name == NO_SANDBOX or not beats or any(opens(runner, name) for runner in beats):
        return
    offered = {backend for runner in beats if runner.sandboxes is not None for backend in runner.sandboxes.backends}
    _refuse(f"no runner has sandboxes of `{name}` (they have {', '.join(sorted(offered)) or 'none'})", "options.harness.sandbox")


def check_graders(needs: Sequence[GraderNeed], evaluators: Iterable[Heartbeat]) -> None:
    """Refuse a grader that a living evaluator cannot run: any of them may get the sessions. Raises Refused.

    Without an evaluator nothing is known.
    """
    for evaluator in evaluators:
        if evaluator.graders is not None and (problem := lacking(needs, evaluator.graders)) is not None:
            _refuse(f"{evaluator.instance_id} cannot grade: {problem}", "options.grader")


def needs_of_recording(options: TaskOptions) -> TaskNeeds:
    """Return what a task without an archive needs. Raises Refused."""
    return TaskNeeds(graders=_graders(options, None))


def check_archive(data: bytes, options: TaskOptions) -> TaskNeeds:
    """Unpack and read the task as a runner will; return what it needs. Raises Refused. Blocks: call it in a thread."""
    try:
        with tempfile.TemporaryDirectory(prefix="evener-task-") as folder:
            task = unpacked(data, Path(folder))
            needs = TaskNeeds(graders=_graders(options, task), sandbox_digest=sandbox_digest(task.sandbox))
    except TaskError as cause:
        raise SubmissionRefused(str(cause.args[0]), "task.archive") from cause
    if lacking := lacks(options.harness.sandbox, task):
        name = options.harness.sandbox
        _refuse(f"the sandbox `{name}` cannot give the task what it needs: {', '.join(lacking)}", "options.harness.sandbox")
    if options.harness.sandbox != NO_SANDBOX and (problem := not_taken(harness(options.harness.name), task.mcp_servers)) is not None:
        _refuse(problem, "options.harness.name")
    return needs


def _graders(options: TaskOptions, task: Task | None) -> tuple[GraderNeed, ...]:
    try:
        return needs_of(options.grader, task)
    except GraderRefused as cause:
        raise SubmissionRefused(cause.what, "options.grader") from cause


def _check_harness(wanted: HarnessSpec) -> None:
    """Refuse an unknown harness, unless somebody else runs it."""
    if wanted.sandbox == NO_SANDBOX:
        return
    try:
        harness(wanted.name).check(wanted.options)
    except HarnessError as cause:
        raise SubmissionRefused(str(cause.args[0]), "options.harness") from cause


def _check_patterns(options: TaskOptions) -> None:
    """Refuse a text that is not a regular expression, or is too much work to compile."""
    quirks, grader = options.harness.quirks or Quirks(), options.grader.options
    patterns = [(f"options.harness.quirks.{place}", pattern) for place, pattern in quirks.patterns()]
    if grader.get("match") == "regex" and "expected" in grader:
        patterns.append(("options.grader.options.expected", grader["expected"]))
    for field, pattern in patterns:
        try:
            text_pattern(pattern)
        except BadPattern as cause:
            _refuse(str(cause.args[0]), field)


def _check_target(model: str, target: Target, policy: str) -> None:
    if sum(field is not None for field in (target.policy, target.frozen, target.refuse)) != 1:
        _refuse("a target has exactly one of `policy`, `frozen` and `refuse`", f"options.models.{model}")
    if target.policy is not None and target.policy != policy:
        _refuse(f"a session trains one policy: {policy!r}; name another model as `frozen`", f"options.models.{model}")


def _refuse(what: str, field: str) -> None:
    raise SubmissionRefused(what, field)


def _place(message: str) -> tuple[str, str | None]:
    """Return msgspec's message, and the dotted path in it."""
    match = _FIELD.match(message)
    what, path = (match["what"], match["path"]) if match else (message, "")
    unknown = _UNKNOWN.match(what)
    if unknown:
        path = f"{path}.{unknown['name']}".lstrip(".")
        what = f"unknown field {path}"
    return what, path or None
