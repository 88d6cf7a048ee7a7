"""From a policy's configuration to its renderer."""

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from evener.proto.spec import PolicyOptions, Thinking
from evener.templates import folder, gguf
from evener.templates.config import PolicyConfig
from evener.templates.jinja import ChatTemplate
from evener.templates.parsers import CALL
from evener.templates.port import Renderer, TemplateError
from evener.templates.renderer import JinjaRenderer
from evener.templates.source import Source

KEEP_THINKING: Final = {"clear_thinking": False, "preserve_thinking": True}
"""The names under which templates let earlier reasoning be kept. One that knows none of them strips it, and then nothing is bridged."""


def open_renderer(config: PolicyConfig) -> Renderer:
    """Read tokenizer and template, and prove them. Blocks for about half a second. Raises TemplateError."""
    source = _source(config.source)
    text = source.template if config.template is None else _template_text(config.template)
    if text is None:
        msg = f"policy {config.name}: {config.source} has no chat template; name one with `template`"
        raise TemplateError(msg)
    template = ChatTemplate(text, source.constants | _switches(config.options))
    hermes = config.tool_parser == "hermes" or (config.tool_parser == "auto" and CALL in text)
    return JinjaRenderer(source, template, hermes=hermes, options=config.options, vision=config.vision)


def _source(source: str) -> Source:
    kind, _, where = source.partition(":")
    if kind == "hf":
        return folder.load(Path(where).expanduser())
    if kind == "gguf":
        package = where.removeprefix("package:")
        return gguf.load(Path(where).expanduser() if package == where else gguf.package_file(package))
    msg = f"source {source!r}: write gguf:PATH, gguf:package:NAME or hf:FOLDER"
    raise TemplateError(msg)


def _template_text(name: str) -> str:
    bundled = files("evener.templates") / "bundled" / f"{name}.jinja"
    try:
        return bundled.read_text() if bundled.is_file() else Path(name).expanduser().read_text()
    except (OSError, ValueError) as cause:
        msg = f"template {name!r} is neither bundled nor a readable file: {cause}"
        raise TemplateError(msg) from cause


def _switches(options: PolicyOptions) -> dict[str, Any]:
    return dict(KEEP_THINKING) if options.thinking is Thinking.ALL else {}
