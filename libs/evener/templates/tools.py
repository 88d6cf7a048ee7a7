"""Finds whether a chat template renders the tools of a request. A template that does not omits them without an error."""

from typing import Any, Final

from evener.templates.jinja import ChatTemplate
from evener.templates.port import TemplateError
from evener.templates.shape import shape_tools

PROBE_TOOL: Final = "zebra_finder"
"""A name that no template writes by itself."""
PROBE_TOOLS: Final = shape_tools([{"name": PROBE_TOOL, "description": "Finds zebras.", "parameters": {"type": "object", "properties": {}}}])
HELLO: Final[dict[str, Any]] = {"role": "user", "content": "Hello"}
TOOL_HISTORIES: Final = ([HELLO], [{"role": "system", "content": "Be brief."}, HELLO])
"""Histories to try: some templates write tools only into an existing system message."""


def renders_tools(template: ChatTemplate) -> bool:
    """Return whether the name of a tool appears in the prompt."""
    return any(_renders(template, history) for history in TOOL_HISTORIES)


def _renders(template: ChatTemplate, history: list[dict[str, Any]]) -> bool:
    try:
        return PROBE_TOOL in template.render(history, PROBE_TOOLS, open_turn=True)
    except TemplateError:
        return False
