"""All inputs."""

from typing import Final

from proofs.hostile.archives import ARCHIVES
from proofs.hostile.bodies import BODIES, NUMBERS
from proofs.hostile.control import CONTROL, SUBMITTED
from proofs.hostile.input import Input
from proofs.hostile.outages import OUTAGES
from proofs.hostile.starts import STARTS
from proofs.hostile.streams import STREAMS
from proofs.hostile.wire import WIRE
from proofs.hostile.work import FILES, HARNESS, REWARDS

INPUTS: Final[tuple[Input, ...]] = (
    *BODIES,
    *NUMBERS,
    *WIRE,
    *STREAMS,
    *CONTROL,
    *SUBMITTED,
    *ARCHIVES,
    *REWARDS,
    *HARNESS,
    *OUTAGES,
    *FILES,
    *STARTS,
)
NOT_DRIVEN: Final = {
    "1.1 msgspec's race": "it strikes by chance: tests/unit",
    "1.6 the tail of a partition behind a slow blob store": "a folder cannot be made slow: tests/unit",
    "1.9 a marked retry after a 503": "harnesses of the suite mark none: tests/unit",
    "1.10 resampled": "a figure of the books: tests/unit",
    "1.11 a runner's clock ahead": "no clock of a process can be set apart here: tests/unit and the contract of the bus",
    "1.13 the tokenizer of a frozen engine": "tests/unit",
}
"""What of the first audit's section 1 no input does, and where it is tested."""
