"""What each trainer's format writes for one group: the files in `golden`, a record a line.

`python -m tests.unit.formats.golden_records` writes the file of a format that has none. It never changes one that is there: delete it
first, if the trainer's own fields have changed.
"""

import io
from pathlib import Path
from typing import Final

from tests.support.trainer_groups import several_rows, single_rows

from evener.formats.registry import trainer_formats
from evener.formats.trainer_format import TrainerFormat

FOLDER: Final = Path(__file__).parent / "golden"


def written(kind: TrainerFormat) -> bytes:
    """Return the lines of the group with most in it that the trainer takes."""
    sink = io.BytesIO()
    kind.write([several_rows() if kind.several_rows else single_rows()], sink)
    return sink.getvalue()


def file_of(kind: TrainerFormat) -> Path:
    """Return where a format's records stand."""
    return FOLDER / f"{kind.name}.jsonl"


if __name__ == "__main__":
    for one in trainer_formats().values():
        if not file_of(one).exists():
            file_of(one).write_bytes(written(one))
