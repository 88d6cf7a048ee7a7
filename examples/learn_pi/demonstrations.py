"""The policy's first lessons: sessions of the real harnesses, recorded by Evener and rewritten with other payloads.

A scripted engine plays one right session of each kind. What Evener fed and sampled there, decoded, is the very text that the policy
will see; only the payload, the working directory and the place of the installation are drawn again. Most demonstrations are then
spoilt in one place: a policy that is always right has nothing to learn.
"""

import random
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from tasks import NAMES, NUMBERS, Payload

NOISE: Final = {"text": 0.12, "name": 0.15, "number": 0.15, "file": 0.12, "command": 0.06}
"""Share of demonstrations with this fault; the others are right."""
OTHER_PLACE: Final = 0.65
"""Share with another working directory and installation than those recorded. Without it the policy fails wherever it is installed."""
OTHER_FILES: Final = ("in.txt", "note.txt", "answer.txt", "out.md")
OTHER_COMMAND: Final = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
NOTHING_SAID: Final = "\n<|im_start|>user\n<tool_response>\n(no output)\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
FOLDERS: Final = (
    "home",
    "root",
    "tmp",
    "var",
    "opt",
    "data",
    "usr",
    "srv",
    "work",
    "build",
    "cache",
    ".cache",
    "state",
    "runs",
    "main",
    "src",
)


class Recorded(Struct, frozen=True, kw_only=True):
    """One session as text: what was fed before each answer, and the answers.

    {payload}, {written}, {file}, {length}, {cwd} and {bundle} stand where something is drawn.
    """

    harness: str
    kind: str
    fed: tuple[str, ...]
    answers: tuple[str, ...]
    cwd: str
    bundle: str


class Demonstration(Struct, frozen=True, kw_only=True):
    """Text, as (given, answered) pairs. Only answers are learnt."""

    turns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "".join(given + answered for given, answered in self.turns)


def demonstrations(recorded: list[Recorded], payloads: list[Payload], seed: int, *, noisy: bool) -> Iterator[Demonstration]:
    """Yield demonstrations for ever, in an order that is always the same."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        fault = rng.choices((None, *NOISE), (1 - sum(NOISE.values()), *NOISE.values()))[0] if noisy else None
        yield _one(rng.choice(recorded), rng.choice(payloads), fault, rng)


def _one(recorded: Recorded, payload: Payload, fault: str | None, rng: random.Random) -> Demonstration:
    written = _other(payload, fault, rng)
    file = rng.choice(OTHER_FILES) if fault == "file" else "out.txt"
    moved = rng.random() < OTHER_PLACE
    drawn = {
        "{payload}": str(payload),
        "{written}": str(written),
        "{length}": str(len(str(written))),
        "{file}": file,
        "{cwd}": _place(rng, rng.choice((8, 32, 100))) + "/app" if moved else recorded.cwd,
        "{bundle}": _place(rng, 8) if moved else recorded.bundle,
    }
    turns = list(zip(recorded.fed, recorded.answers, strict=True))
    if fault == "text":
        kept = rng.randrange(len(turns) - 1)
        turns = [*turns[:kept], (turns[kept][0], turns[-1][1])]
    elif fault == "command" and recorded.harness == "pi":
        turns = [(turns[0][0], OTHER_COMMAND), (NOTHING_SAID, turns[-1][1])]
    return Demonstration(turns=tuple((_fill(given, drawn), _fill(answered, drawn)) for given, answered in turns))


def _other(payload: Payload, fault: str | None, rng: random.Random) -> Payload:
    match fault:
        case "name":
            return payload._replace(name=rng.choice([name for name in NAMES if name != payload.name]))
        case "number":
            return payload._replace(number=rng.choice([number for number in NUMBERS if number != payload.number]))
        case _:
            return payload


def _fill(text: str, drawn: dict[str, str]) -> str:
    for place, value in drawn.items():
        text = text.replace(place, value)
    return text


def _place(rng: random.Random, bits: int) -> str:
    folders = rng.choices(FOLDERS, k=rng.randint(1, 4))
    return "/" + "/".join([*folders, f"{rng.choice(('run', 'write', 'copy', 's'))}-{rng.getrandbits(bits):x}"])
