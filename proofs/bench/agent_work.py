"""Agent work for a scripted engine: what a policy would do in 30 to 50 turns on a small code base, with the tools of a real CLI."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from evener.engines.scripted.script import Rule, Step, ToolCall

TURNS: Final = (30, 50)
"""Fewest and most model calls of a session."""
MAX_OF_A_PART: Final = 7
"""Turns that one module takes at most."""
ENDING: Final = 3
"""Turns of the report, a last look and the final answer."""
PYTHON: Final = f"{sys.executable} -B"
SAID: Final = (
    "",
    "I'll look at it first.",
    "Next step:\n",
    "\n\n  One thing at a time — é\u2028😀.  \n\n",
    "That explains it. Now the other half.",
    "Let me check that this holds.\n\n- the value\n- the edge case",
)
THOUGHT: Final = ("", "", "The last output looks right.\nI should still test it.", "Hm. Which file holds the constant?", "Small steps.")
SPELLINGS: Final[Sequence[Literal["plain", "compact", "reordered", "escaped"]]] = ("plain", "plain", "compact", "reordered", "escaped")

INVENTORY: Final = '''"""The inventory."""

import csv


def total(limit):
    with open("data.csv") as file:
        rows = list(csv.DictReader(file))
    return sum(float(row["price"]) * int(row["count"]) for row in rows[:limit])
'''


class Act(Struct, frozen=True, kw_only=True):
    """One use of a tool: a command for the shell, or what is done with a file."""

    command: str = ""
    read: str = ""
    """A file; from line `start`, `lines` lines."""
    start: int = 1
    lines: int = 40
    write: str = ""
    """A file; its new `text`."""
    edit: str = ""
    """A file; `text` takes the place of `old`."""
    old: str = ""
    text: str = ""


Turn = tuple[Act, ...]
Spell = Callable[[Act, str], tuple[str, dict[str, object]]]
"""A tool's name and arguments for an act; the second argument is the working directory, absolute."""


class Work(Struct, frozen=True, kw_only=True):
    """One session's task and script."""

    name: str
    instruction: str
    files: Mapping[str, str]
    """The files of the environment, by path."""
    parts: Mapping[str, int]
    """What each module's `value(7)` must be in the end."""
    steps: tuple[Step, ...]
    """The model calls."""

    @property
    def rule(self) -> Rule:
        """The engine's answers in this session, by its name in the prompt."""
        return Rule(match=f"{self.name}.", tail=0, steps=self.steps)

    @property
    def test(self) -> str:
        """The test script: 1 if all modules are right."""
        checks = " and ".join(f"__import__('{name}').value(7) == {value}" for name, value in self.parts.items())
        return f"""cd /app && {PYTHON} -c "import sys; sys.path.insert(0, '.'); assert {checks}" && grep -q done report.txt
if [ $? = 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""

    def save(self, folder: Path) -> Path:
        """Write the task's directory."""
        (folder / "tests").mkdir(parents=True)
        (folder / "environment").mkdir()
        (folder / "task.toml").write_text(f'[task]\nname = "bench/{self.name}"\n')
        (folder / "instruction.md").write_text(self.instruction)
        (folder / "tests" / "test.sh").write_text(self.test)
        for path, text in self.files.items():
            (folder / "environment" / path).write_text(text)
        return folder


def work(name: str, spell: Spell, links: Path) -> Work:
    """Return the work of a session, always the same for a name. `links`: a folder where it may find itself by an absolute path."""
    drawn = random.Random(name)  # noqa: S311 - repeatable on purpose
    count, parts = drawn.randint(*TURNS), dict[str, int]()
    workdir = str(links / name)
    turns: list[Turn] = [
        (Act(command=f'ln -sfn "$PWD" {workdir}; ls -la; head -4 data.csv'),),
        (Act(read="README.md"), Act(command="wc -l *")),
    ]
    while len(turns) < count - ENDING - MAX_OF_A_PART + 1:
        turns += _part(drawn, parts)
    turns += [_look(drawn, parts) for _ in range(count - ENDING - len(turns))]
    report = f"done: {', '.join(f'{part}={value}' for part, value in parts.items())}\n"
    turns += [(Act(write="report.txt", text=report),), (Act(command="cat report.txt; ls *.py | wc -l"),)]
    steps = [_step(drawn, turn, lambda act: spell(act, workdir)) for turn in turns]
    return Work(
        name=name,
        instruction=f"This is {name}. Write the modules that README.md asks for, check each of them, and leave a report.txt.",
        files=_files(drawn, name),
        parts=parts,
        steps=(*steps, Step(think="All is checked.", say=f"All modules of {name} are written and checked; see report.txt.")),
    )


def _part(drawn: random.Random, parts: dict[str, int]) -> Iterator[Turn]:
    """Yield the turns that write one module: looks, mistakes, corrections."""
    name, factor, wrong = f"part_{len(parts) + 1}", drawn.randint(2, 99), drawn.random() < 0.6
    text = _module(name, factor)
    check = Act(command=f"{PYTHON} -c \"import {name}; assert {name}.value(7) == {7 * factor}, {name}.value(7); print('{name} ok')\"")
    if drawn.random() < 0.5:
        yield _look(drawn, parts)
    yield (Act(write=f"{name}.py", text=_module(name, factor + 1) if wrong else text),)
    yield (check,)
    if wrong:
        if drawn.random() < 0.4:  # it remembers the line badly: the edit fails
            yield (Act(edit=f"{name}.py", old=f"FACTOR = {factor + 2}\n", text=f"FACTOR = {factor}\n"),)
            yield (Act(read=f"{name}.py", start=1, lines=9),)
        yield (Act(edit=f"{name}.py", old=f"FACTOR = {factor + 1}\n", text=f"FACTOR = {factor}\n"),)
        yield (check, Act(command=f"grep -n FACTOR {name}.py"))
    parts[name] = 7 * factor


def _look(drawn: random.Random, parts: Mapping[str, int]) -> Turn:
    """Return a turn that changes nothing; some of them fail."""
    known = [f"{part}.py" for part in parts] or ["inventory.py"]
    file, line = drawn.choice(known), drawn.randint(2, 40)
    looks: list[Turn] = [
        (Act(command=f"grep -n 'def ' {file} inventory.py"),),
        (Act(read=file, start=1, lines=20),),
        (Act(read="data.csv", start=line, lines=12),),
        (Act(command=f"sed -n '{line},{line + 9}p' data.csv | sort -t, -k2"),),
        (Act(command="cut -d, -f3 data.csv | sort | uniq -c; find . -name '*.py' | sort"), Act(read=file, start=2, lines=6)),
        (Act(read=f"missing_{line}.py"),),
        (Act(command=f"grep -n TODO {file}"),),
        (Act(command=f"{PYTHON} -c 'import inventory; print(inventory.total({line}))'"),),
    ]
    return drawn.choice(looks)


def _step(drawn: random.Random, turn: Turn, spelled: Callable[[Act], tuple[str, dict[str, object]]]) -> Step:
    calls = [ToolCall(name=name, arguments=arguments, spelling=drawn.choice(SPELLINGS)) for name, arguments in map(spelled, turn)]
    return Step(think=drawn.choice(THOUGHT), say=drawn.choice(SAID), tool_calls=tuple(calls))


def _module(name: str, factor: int) -> str:
    body = '    """Return the value — naïvely."""\n    return number * FACTOR\n'
    return f'"""Module {name}: values of the inventory."""\n\nFACTOR = {factor}\n\n\ndef value(number):\n{body}'


def _files(drawn: random.Random, name: str) -> dict[str, str]:
    kinds = ("bolt", "nut", "washer", "screw")
    rows = [f"{number},{drawn.choice(kinds)},{drawn.randint(1, 9)},{drawn.randint(100, 9999) / 100}" for number in range(1, 61)]
    asked = "Write `part_1.py`, `part_2.py`, ... with a function `value(number)` each."
    return {
        "README.md": f"# {name}\n\n{asked}\nThe data are in `data.csv`.\n",
        "data.csv": "\n".join(["id,kind,count,price", *rows]) + "\n",
        "inventory.py": INVENTORY,
    }
