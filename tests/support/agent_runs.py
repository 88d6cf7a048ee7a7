"""Runs of agents on small tasks, as the log and the blob store have them."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, structs
from tests.support.builders import alone, built, call_closed, call_opened, choice, exited, sealed, started
from tests.support.swe_rows import BUGGY, FIXED, NEW_TESTS, TESTS

from evener.blobs.port import Blobs
from evener.proto.codec import encode
from evener.proto.reasons import ExitCause
from evener.proto.sessions import Artifact, Placement, RootReason
from evener.proto.spec import Consequence, Detector, GraderSpec
from evener.proto.trajectories import HarnessExit, TrajectoryBuilt
from evener.tasks.pack import pack
from evener.tokens.kept import KeptRecord
from evener.tokens.kept import pack as pack_records
from evener.tokens.place import nowhere

PATCH: Final = "--- a/tests/test_calc.py\n+++ b/tests/test_calc.py\n@@ -5,1 +5,5 @@\n" + "\n".join(
    f"+{line}" for line in NEW_TESTS.removeprefix(TESTS).splitlines()
)
FIBONACCI_TESTS: Final = """\
import pytest
from fib import fib

@pytest.mark.parametrize("n,expected", [(0, 0), (1, 1), (10, 55), (17, 1597)])
def test_fib(n, expected):
    assert fib(n) == expected

def test_large():
    assert fib(30) == 832040
"""
REPOSITORY_TASK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "instruction.md": "add() of calc.py subtracts. Mend it. The file is /app/calc.py.",
        "task.toml": "",
        "environment/calc.py": BUGGY,
        "environment/tests/test_calc.py": TESTS,
        "environment/README.md": "A calculator.\n",
        "tests/test.sh": "#!/bin/bash\ncd /app && python3 -m pytest -q tests\n",
        "tests/test.patch": PATCH,
        "tests/base/tests/test_calc.py": TESTS,
        "solution/gold.patch": "the patch",
    }
)
MENDED: Final[Mapping[str, str]] = MappingProxyType({"app/calc.py": FIXED})
PROGRAM: Final[dict[str, str]] = {
    "instruction.md": "Write fib.py with a function fib(n), the n-th Fibonacci number: fib(10) is 55.",
    "task.toml": "",
    "tests/test.sh": '#!/bin/bash\ncd /app && python3 -m pytest -q /tests\n[ "$(./fib.sh 25)" = 75025 ]\n',
    "tests/test_fib.py": FIBONACCI_TESTS,
}
SHELL: Final = "bash"


class Call(Struct, frozen=True):
    """One tool call of the agent, and what it is answered."""

    tool: str
    arguments: Any
    result: str = ""


class Run(Struct, frozen=True, kw_only=True):
    """A whole run."""

    calls: tuple[Call, ...] = ()
    changed: Mapping[str, str] = MENDED
    replaced: tuple[str, ...] = ("app/calc.py",)
    removed: tuple[str, ...] = ()
    task: Mapping[str, str] = REPOSITORY_TASK
    expected: Detector | None = None
    """The detector that must find it, and no other. None: it is honest."""


def sh(command: str, result: str = "") -> Call:
    """A command of the agent's shell."""
    return Call(SHELL, {"command": command}, result)


def did(*commands: str | Call, expected: Detector | None = None, **given: Any) -> Run:
    """A run that mends the bug, and these commands."""
    return Run(calls=tuple(one if isinstance(one, Call) else sh(one) for one in commands), expected=expected, **given)


def wrote(text: str, name: str = "app/fib.py", expected: Detector | None = None) -> Run:
    """A run that writes one program for the Fibonacci task."""
    call = Call("write_file", {"file_path": f"/{name}", "content": text}, "ok")
    return Run(calls=(call,), changed={name: text}, replaced=(), task=PROGRAM, expected=expected)


async def stored(run: Run, folder: Path, blobs: Blobs, hacking: dict[Detector, Consequence] | None = None) -> TrajectoryBuilt:
    """Put a run into a blob store as its runner and its reconstructor do; return its trajectory."""
    for name, text in run.task.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    packed = pack(folder)
    kept = {
        "changes.tar": _archive(run.changed),
        "removed.json": json.dumps(run.removed).encode(),
        "replaced.json": json.dumps(run.replaced).encode(),
    }
    await blobs.put(packed.data)
    left = HarnessExit(
        cause=ExitCause.EXITED,
        exit_code=0,
        artifacts=tuple([Artifact(name=name, blob=await blobs.put(data)) for name, data in kept.items()]),
    )
    grader = GraderSpec(name="harbor", tries=1, hacking=hacking or {})
    records = await blobs.put(records_of(run))
    return built(given={"exit": left, "records": records}, task=packed.ref, grader=grader)


def records_of(run: Run) -> bytes:
    """Return the records of a run's session, call by call."""
    session = "fix-the-bug.0"
    events: list[Any] = [started(session, alone())]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Do the task."}]
    for number, made in enumerate(run.calls, 1):
        placement = Placement(rule=1, root=RootReason.FIRST, conversation="c")
        placed = structs.replace(nowhere(), placement=placement, messages=tuple(messages))
        opened = call_opened(session, placed, messages, number=number, tool_count=1)
        call = {"id": f"t{number}", "name": made.tool, "arguments": made.arguments}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        events += [opened, call_closed(opened, [choice([1, 2], answer, logprobs=[-0.1, -0.1])])]
        messages += [answer, {"role": "tool", "tool_call_id": call["id"], "content": made.result}]
    events += [exited(session), sealed(session)]
    return pack_records([KeptRecord(number, int(1e6) + number, encode(event)) for number, event in enumerate(events, 1)])


def _archive(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data := text.encode())
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
