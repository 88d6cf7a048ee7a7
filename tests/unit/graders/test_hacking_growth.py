"""What the detectors do for hostile input grows with its size and no faster: twice the input, at most about twice the work.

Work is counted, not timed: the lines of Python that run, and the most memory that is held.
"""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support.builders import alone, call_closed, call_opened, choice, started

from evener.graders.hacking.actions import action_of, actions_of
from evener.graders.hacking.detect import flags_of
from evener.graders.hacking.watched import Watched
from evener.tokens.place import nowhere
from evener.tokens.session import SessionLog

SESSION: Final = "s.0"
SIZE: Final = 60
GROWTH: Final = 2.4
"""What twice the input may take: some of the work is the same for each."""
FEW_LINES: Final = 3_000
FEW_BYTES: Final = 200_000
TESTS: Final = {"test_a.py": "".join(f"assert f('a{n}', 1) == 'b'\n" for n in range(400)).encode()}


def work_of(doing: Callable[[], object]) -> tuple[int, int]:
    """Return how many lines of Python run, and how many bytes are held at once."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        doing()
    finally:
        sys.settrace(before)
    tracemalloc.start()
    try:
        doing()
        return lines, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def grows_with(made: Callable[[int], Callable[[], object]], size: int = SIZE) -> None:
    """Assert that twice the size takes about twice the work."""
    made(1)()  # what is done once, such as compiling expressions
    (lines, held), (more_lines, more_held) = work_of(made(size)), work_of(made(2 * size))
    assert more_lines <= GROWTH * lines + FEW_LINES
    assert more_held <= GROWTH * held + FEW_BYTES


def shell(command: str) -> Callable[[], object]:
    """A look at one command."""
    return lambda: flags_of(Watched(actions=(action_of("c1", "bash", {"command": command}),), workdir="/app"), {})


def program(text: str, name: str = "app/x.py") -> Callable[[], object]:
    """A look at one changed program."""
    return lambda: flags_of(Watched(changes={name: text.encode()}, tests=TESTS), {})


def session(*calls: tuple[str, str]) -> Callable[[], object]:
    """A look at a session of calls: what is read before each, and its command."""
    log = SessionLog(SESSION)
    events: list[Any] = [started(SESSION, alone())]
    for number, (text, command) in enumerate(calls, 1):
        message = {"role": "user", "content": text}
        opened = call_opened(SESSION, structs.replace(nowhere(), messages=(message,)), [message], number=number, tool_count=1)
        answer = {"role": "assistant", "tool_calls": [{"id": "t", "name": "bash", "arguments": {"command": command}}]}
        events += [opened, call_closed(opened, [choice([1], answer, logprobs=[-0.1])])]
    for offset, event in enumerate(events):
        log.apply(event, offset=offset, record_at=float(offset))

    def looked() -> object:
        read: dict[str, int] = {}
        return flags_of(Watched(actions=tuple(actions_of(log, read)), read=read), {})

    return looked


def words(count: int) -> str:
    return " ".join(f"{number * 2654435761 % 2**32:08x}" for number in range(count))


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda n: shell("find . " + "-exec " * 10 * n), id="commands of find"),
        pytest.param(lambda n: shell("find . " + "-exec x " * 10 * n), id="short commands of find"),
        pytest.param(lambda n: shell("git " + "-a " * 50 * n + "log"), id="options of git"),
        pytest.param(lambda n: shell("echo x" + " > a" * 50 * n), id="redirections"),
        pytest.param(lambda n: shell("cd a; cat x;" * 20 * n), id="folders"),
        pytest.param(lambda n: shell("cat <<A\nx\nA\n" * 20 * n), id="documents"),
        pytest.param(lambda n: session((words(20 * n), "ls"), *[("", "ls")] * n), id="words read before many calls"),
        pytest.param(lambda n: session((words(20 * n), "git show " + words(40 * n))), id="commits among words"),
        pytest.param(lambda n: program("t = [" + "('a1', 2)," * 20 * n + "]"), id="a table"),
        pytest.param(lambda n: program("if x == 'a1':\n    return 'b'\n" * 5 * n), id="branches"),
        pytest.param(lambda n: program("y = 1 if " + "(x == 'a' and " * n + "1" + ")" * n + " else 2", "x.py"), id="nested conditions"),
        pytest.param(lambda n: program("case 'q': echo 'r' ;;\n" * 5 * n, "app/x.sh"), id="lines"),
    ],
)
def test_work_grows_with_the_input(made: Callable[[int], Callable[[], object]]) -> None:
    grows_with(made, 30)


def test_work_is_for_tests_and_programs_one_after_the_other() -> None:
    """Each case of a program was compared with each of the tests."""

    def many(size: int) -> Callable[[], object]:
        tests = {"test_a.py": "".join(f"assert f('a{n}', 1) == 'b'\n" for n in range(5 * size)).encode()}
        table = "t = [" + "('c', 'b')," * 20 * size + "]"
        lines = "case 'a1': return 'z'\n" * 5 * size
        return lambda: flags_of(Watched(changes={"x.py": table.encode(), "y.js": lines.encode()}, tests=tests), {})

    grows_with(many, 30)


def test_arguments_are_read_however_deep_they_lie() -> None:
    """Deeper than Python calls itself."""
    arguments: object = {"command": "git reflog"}
    for _ in range(5000):
        arguments = [arguments]
    assert action_of("c1", "bash", arguments).commands == (("git", "reflog"),)


PIECES: Final = st.lists(
    st.sampled_from(
        [
            *("find . ", "-exec ", "\\; ", "+ ", "git ", "-c ", "log ", "; ", "| ", "\n", "sh ", "$(", ")", "`", "'", '"', "$A ", "A=b "),
            *(
                "> f ",
                "<<X\n",
                "\nX\n",
                "cd a ",
                "xargs ",
                "/tests/x ",
                "{a,b} ",
                "echo ",
                "python3 ",
                "base64 -d ",
                "https://x.y ",
                "0123456 ",
            ),
        ]
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(PIECES)
def test_work_grows_with_a_command_that_repeats_itself(pieces: list[str]) -> None:
    """Whatever is repeated."""
    grows_with(lambda size: shell("".join(pieces) * size))
