"""Opens the renderer of a policy from its configuration."""

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from evener.proto.spec import PolicyOptions, Thinking
from evener.templates import folder, gguf
from evener.templates.config import PolicyConfig, check_source
from evener.templates.family import add_family
from evener.templates.fingerprint import fingerprint
from evener.templates.jinja import ChatTemplate
from evener.templates.port import TemplateError
from evener.templates.renderer import JinjaRenderer
from evener.templates.source import ModelSource
from evener.templates.special import SplitEncoder
from evener.templates.tools import renders_tools

OWN: Final = "own"
"""The value of `template` that uses the source's own template whatever it renders."""
CHATML_TOOLS: Final = "chatml_tools"
CHATML: Final = ("<|im_start|>", "<|im_end|>")
"""The control tokens that `chatml_tools` writes."""
KEEP_THINKING: Final = {"clear_thinking": False, "preserve_thinking": True}
"""The names under which templates offer to keep earlier reasoning. A template that knows neither strips it, and no turn is bridged."""


class Material(Struct, frozen=True, kw_only=True, eq=False):
    """A policy's files, read. Renderers with other options are made from the same material quickly."""

    source: ModelSource
    template: str
    template_name: str
    """`own`, the name of a bundled template, or a file's path."""
    encoder: SplitEncoder


def open_renderer(config: PolicyConfig) -> JinjaRenderer:
    """Read tokenizer and template, and prove them. Blocks for one to five seconds. Raises TemplateError, ConfigError."""
    return make_renderer(read(config), config)


def read(config: PolicyConfig) -> Material:
    """Read tokenizer and template. Raises TemplateError, and ConfigError for a source that does not exist."""
    check_source(config.source)
    source = _source(config.source)
    name = config.template or _default_template(source)
    text = source.template if name == OWN else _template_text(name)
    if text is None:
        msg = f"policy {config.name}: {config.source} has no chat template; name one with `template`"
        raise TemplateError(msg)
    return Material(source=source, template=text, template_name=name, encoder=SplitEncoder(source.tokenizer, text))


def make_renderer(material: Material, config: PolicyConfig) -> JinjaRenderer:
    """Return the proven renderer of a policy whose files were read. Raises TemplateError."""
    template = ChatTemplate(material.template, material.source.constants | _switches(config.options))
    renderer = JinjaRenderer(material.source, template, material.encoder, config, template_name=material.template_name)
    if config.renderer != "jinja":
        add_family(renderer, config.renderer, config.options)
    found = {"family": renderer.family, "tools": renderer.tool_parser, "reasoning": renderer.reads_reasoning, "stop": renderer.stop_ids}
    renderer.fingerprint = fingerprint(config, material.source.tokenizer, material.template, material.source.constants, found)
    return renderer


def _source(source: str) -> ModelSource:
    kind, _, where = source.partition(":")
    if kind == "hf":
        return folder.load(Path(where).expanduser())
    if kind == "gguf":
        package = where.removeprefix("package:")
        return gguf.load(Path(where).expanduser() if package == where else gguf.package_file(package))
    msg = f"source {source!r}: write gguf:PATH, gguf:package:NAME or hf:FOLDER"
    raise TemplateError(msg)


def _default_template(source: ModelSource) -> str:
    """Return the source's own template, or `chatml_tools` if that one renders no tools and the tokenizer has ChatML's control tokens."""
    chatml = all(source.tokenizer.token_to_id(token) is not None for token in CHATML)
    if source.template is None or not chatml or renders_tools(ChatTemplate(source.template, source.constants)):
        return OWN
    return CHATML_TOOLS


def _template_text(name: str) -> str:
    bundled = files("evener.templates") / "bundled" / f"{name}.jinja"
    try:
        return bundled.read_text() if bundled.is_file() else Path(name).expanduser().read_text()
    except (OSError, ValueError) as cause:
        msg = f"template {name!r} is neither bundled nor a readable file: {cause}"
        raise TemplateError(msg) from cause


def _switches(options: PolicyOptions) -> dict[str, Any]:
    return dict(KEEP_THINKING) if options.thinking is Thinking.ALL else {}
