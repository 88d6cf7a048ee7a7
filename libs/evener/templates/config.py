"""The configuration of a policy's tokenizer and chat template."""

from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from evener.proto.errors import ConfigError
from evener.proto.spec import PolicyOptions

NOT_DOWNLOADED: Final = "No such file or directory. Evener does not download from a model hub"


class PolicyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's tokenizer, template and options. `open_renderer` opens them as a Renderer."""

    name: str
    source: str
    """Where the tokenizer comes from: `gguf:PATH`, `gguf:package:NAME` (the one GGUF file inside an installed package) or `hf:FOLDER`
    (tokenizer.json beside chat_template.jinja or tokenizer_config.json)."""
    template: str | None = None
    """The chat template: the name of a bundled one (`chatml_tools`), a file's path, or `own` for the one in the source. None: the source's
    own, or `chatml_tools` if that one renders no tools and the tokenizer has ChatML's control tokens."""
    renderer: str = "auto"
    """How a conversation is extended: `jinja`, a family of the library `renderers` (`qwen3`, `llama-3`, ...), or `auto`: the family that is
    proven against the template, otherwise jinja."""
    tool_parser: Literal["auto", "hermes", "functions", "keys", "json", "deepseek", "harmony", "none"] = "auto"
    """How sampled tool calls are spelled (`evener.templates.calls`). `auto`: as the template writes them."""
    options: PolicyOptions = PolicyOptions()
    vision: bool = False
    """Whether images are passed to the template. If not, they are refused."""


def check_source(source: str) -> None:
    """Raise ConfigError if a policy's source names a file or folder that does not exist. Nothing is read."""
    kind, _, where = source.partition(":")
    if kind not in {"gguf", "hf"} or where.startswith("package:") or Path(where).expanduser().exists():
        return
    msg = (
        f"policy source {source}: {NOT_DOWNLOADED}: name a GGUF file (gguf:PATH), or a folder in the hub's format (hf:FOLDER, with "
        "tokenizer.json and the chat template)"
    )
    raise ConfigError(msg)
