"""Trainers' formats stay as they were written: a field that moves or is renamed is seen here."""

import pytest
from tests.unit.formats.golden_records import FOLDER, file_of, written

from evener.formats.registry import trainer_formats
from evener.formats.trainer_format import TrainerFormat

FORMATS = trainer_formats()


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
def test_records_are_those_on_file(kind: TrainerFormat) -> None:
    assert written(kind).splitlines() == file_of(kind).read_bytes().splitlines()


def test_every_file_belongs_to_a_format() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(FORMATS)
