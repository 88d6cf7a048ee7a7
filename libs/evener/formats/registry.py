"""The registry of formats. A new format is a module with `FORMAT`, and its line here.

The formats of trainers are in `evener.formats.trainers`: each of its modules has a `TrainerFormat`. docs/trainers.md says what they refuse.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from evener.formats.port import Format
from evener.formats.trainer_format import TrainerFormat

FORMATS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "jsonl": "evener.formats.jsonl",
        "parquet": "evener.formats.parquet",
        "trl": "evener.formats.trainers.trl",
        "trl_async": "evener.formats.trainers.trl_async",
        "verl": "evener.formats.trainers.verl",
        "verl_transfer_queue": "evener.formats.trainers.verl_transfer_queue",
        "prime_rl": "evener.formats.trainers.prime_rl",
        "slime": "evener.formats.trainers.slime",
        "miles": "evener.formats.trainers.miles",
        "nemo_gym": "evener.formats.trainers.nemo_gym",
        "nemo_rl": "evener.formats.trainers.nemo_rl",
        "areal": "evener.formats.trainers.areal",
        "openrlhf": "evener.formats.trainers.openrlhf",
        "skyrl": "evener.formats.trainers.skyrl",
        "tinker": "evener.formats.trainers.tinker",
        "atif": "evener.formats.trainers.atif",
    }
)
"""The module of each format. The names of the neutral formats are also the extensions of their files."""

EXTENSIONS: Final = ("jsonl", "parquet")


def format_named(name: str) -> Format:
    """Return the format of this name, imported on demand: a format may need an extra."""
    return cast("Format", importlib.import_module(FORMATS[name]).FORMAT)


def trainer_formats() -> dict[str, TrainerFormat]:
    """Return all formats of trainers, by name."""
    found = {name: importlib.import_module(module).FORMAT for name, module in FORMATS.items() if ".trainers." in module}
    return {name: one for name, one in found.items() if isinstance(one, TrainerFormat)}
