"""Chat templates as the transformers library runs them: the same sandbox, whitespace rules, filters and functions.

Source: the chat-template page of its documentation.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evener.templates.port import TemplateError


class ChatTemplate:
    """A compiled chat template with its constants."""

    def __init__(self, source: str, constants: Mapping[str, Any]) -> None:
        """Raise TemplateError if the source is not a template."""
        self.source = source
        self._constants = dict(constants)
        try:
            self._template = _compiled(source)
        except jinja2.TemplateError as cause:
            msg = f"the chat template does not compile: {cause}"
            raise TemplateError(msg) from cause

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, *, open_turn: bool) -> str:
        """Return the text of messages in the template's shape; `open_turn` adds the generation prompt. Raises TemplateError."""
        try:
            return self._template.render(messages=messages, tools=tools, add_generation_prompt=open_turn, **self._constants)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as cause:
            msg = f"the chat template cannot render these {len(messages)} messages: {cause}"
            raise TemplateError(msg) from cause


class _Generation(Extension):
    """`{% generation %}` marks a training mask elsewhere. Here only its contents are rendered."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    """Return a compiled template: policies share templates, and compiling one takes 10 ms."""
    return _environment().from_string(source)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates pass these by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 (templates mean the local day)
