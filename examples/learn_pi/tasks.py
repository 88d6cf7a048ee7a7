"""The two tasks, as Harbor directories: `write` a name and a number into a file, `copy` a file's text into another.

Which names and numbers are trained on and which are held out is drawn once, from a fixed seed.
"""

import random
from pathlib import Path
from typing import Final, NamedTuple

NAMES: Final = (
    *("Ada", "Alan", "Anna", "Bela", "Boris", "Carla", "Cleo", "Dora", "Edgar", "Elsa"),
    *("Emil", "Fritz", "Greta", "Hanna", "Hugo", "Ida", "Igor", "Irma", "Jonas", "Karl"),
    *("Klara", "Lena", "Leo", "Lotte", "Marta", "Max", "Mina", "Nora", "Olga", "Oskar"),
    *("Paula", "Rosa", "Rudi", "Selma", "Simon", "Tilda", "Udo", "Vera", "Willi", "Zora"),
)
NUMBERS: Final = range(10, 100)
HELD_OUT: Final = 16
"""Prompts that are evaluated and never seen in training, neither demonstrated nor sampled."""
TOLD: Final = {"write": "Write {payload} into out.txt", "copy": "Copy the text of in.txt into out.txt"}

MANIFEST: Final = """schema_version = "1.4"

[task]
name = "learn/{name}"

[agent]
timeout_sec = 120

[verifier]
timeout_sec = 30
"""
TEST: Final = """#!/bin/sh
# 1 for exactly the text that was asked for, 0.1 for another one, 0 for none.
mkdir -p /logs/verifier
right="{payload}"
if [ "$(cat out.txt 2> /dev/null)" = "$right" ]; then reward=1; elif [ -e out.txt ]; then reward=0.1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


class Payload(NamedTuple):
    """The text that has to be written."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


def payloads() -> tuple[list[Payload], list[Payload]]:
    """Return what is trained on, and the HELD_OUT ones, in an order that is always the same. Each name is in both."""
    everything = [Payload(name, number) for name in NAMES for number in NUMBERS]
    random.Random(7).shuffle(everything)  # noqa: S311 - not for secrets
    return everything[HELD_OUT:], everything[:HELD_OUT]


def make_task(folder: Path, name: str, kind: str, payload: Payload) -> Path:
    """Write a task directory into `folder`; return it. The name must not tell the payload: Pi shows it to the model, in a path."""
    task = folder / name
    (task / "tests").mkdir(parents=True, exist_ok=True)
    (task / "instruction.md").write_text(TOLD[kind].format(payload=payload) + "\n")
    (task / "task.toml").write_text(MANIFEST.format(name=name))
    (task / "tests" / "test.sh").write_text(TEST.format(payload=payload))
    if kind == "copy":
        (task / "environment").mkdir(exist_ok=True)
        (task / "environment" / "in.txt").write_text(f"{payload}\n")
    return task
