"""Which tokenizer and chat template a policy is rendered with."""

from typing import Literal

from msgspec import Struct

from evener.proto.spec import PolicyOptions


class PolicyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's tokenizer, template and options. `open_renderer` turns it into a Renderer."""

    name: str
    source: str
    """`gguf:PATH`, `gguf:package:NAME` (the one GGUF file inside an installed package) or `hf:FOLDER` (tokenizer.json beside
    chat_template.jinja or tokenizer_config.json)."""
    template: str | None = None
    """A bundled template's name (`chatml_tools`), a file's path, or `own`: the one that the source brings. None: the source's own, but
    `chatml_tools` where that renders no tools and the tokenizer has the control tokens of ChatML."""
    renderer: str = "auto"
    """Who extends a conversation: `jinja`, a family of the library `renderers` (`qwen3`, `llama-3`, ...), or `auto`: the family that is
    proven against the template, else jinja."""
    tool_parser: Literal["auto", "hermes", "functions", "keys", "json", "deepseek", "harmony", "none"] = "auto"
    """How sampled tool calls are spelled (`evener.templates.calls`). `auto`: as the template writes them."""
    options: PolicyOptions = PolicyOptions()
    vision: bool = False
    """Images are passed on to the template; otherwise they are refused."""
