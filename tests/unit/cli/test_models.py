"""What may be an engine's model."""

from pathlib import Path

import pytest

from evener.cli.all_in_one import check_model
from evener.cli.config import Config
from evener.proto.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer, without a model."""
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("engine", ["http://127.0.0.1:1", "none"])
def test_a_tokenizer_is_enough_for_an_engine_elsewhere(folder: Path, engine: str) -> None:
    """It has the weights, and their configuration."""
    check_model(Config(engine=engine, model=str(folder)))


@pytest.mark.parametrize(("engine", "lacks"), [("vllm", "config.json"), ("http://127.0.0.1:1", "tokenizer.json")])
def test_what_is_needed_and_lacks_is_named(tmp_path: Path, engine: str, lacks: str) -> None:
    """vLLM reads the whole folder."""
    if engine == "vllm":
        (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"not a Hugging Face folder: it has no {lacks}"):
        check_model(Config(engine=engine, model=str(tmp_path)))
