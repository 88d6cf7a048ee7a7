"""Converts tools of OpenAI Responses to the functions that the policy sees, and back to their wire form. Pure.

A tool in a namespace becomes a function `NAMESPACE__NAME`, a freeform (`custom`) tool becomes a function with a string parameter `input`,
and the client's own tool search becomes a function `tool_search`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from evener.dialects.canonical import ToolForm
from evener.dialects.fields import as_items, as_list, as_name, as_object, as_string, malformed, refuse
from evener.dialects.rules import Rules, beside
from evener.tokens.digests import Message

SEPARATOR: Final = "__"
SEARCH: Final = "tool_search"
INPUT: Final = "input"
TOOL_KINDS: Final = ("function", "custom", SEARCH)
HOSTED_TOOLS: Final = frozenset(
    {"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "programmatic_tool_calling"}
    | {"url_context", "google_search"}
)
"""Tools that a provider runs itself. The policy does not see them, which is the same as never using them."""
CLIENT_TOOLS: Final = frozenset({"computer", "computer_use", "computer_use_preview", "local_shell", "shell", "apply_patch"})
"""Tools that run at the client and that only their provider's models can call."""
TOOL: Final = Rules(
    at="tools[]",
    obeyed={
        **dict.fromkeys(("name", "description", "parameters"), "shown to the policy as it is"),
        "type": "`function`, `custom` and `tool_search`, and a `namespace` of them; hosted ones are removed; those that run at the "
        "client by a schema which is not sent (`local_shell`, `shell`, `apply_patch`, `computer*`) are refused",
        "tools": "of a namespace",
        "format": "of a custom tool: its grammar is told to the policy, not enforced",
        "execution": "of a tool search: `client`; any other is hosted, and removed",
    },
    recorded={"strict": "arguments are not constrained while they are sampled; a client that validates them may find them wrong"},
)

_DATED: Final = re.compile(r"_\d{4}_\d{2}_\d{2}$")


class ResponsesTool(Struct, frozen=True, kw_only=True, eq=False):
    """A tool as the policy sees it, and as the harness spells it."""

    shown: Message
    form: ToolForm


class Toolset(Struct, frozen=True, kw_only=True, eq=False):
    """The tools of one definition, or of a list of definitions."""

    tools: tuple[ResponsesTool, ...] = ()
    removed: tuple[str, ...] = ()
    """The kinds of hosted tools that were removed."""
    beside: Mapping[str, Mapping[str, Any]] = {}
    """What was dropped from each tool or namespace, by its name."""


EMPTY_TOOLSET: Final = Toolset()


def flat_name(namespace: str | None, name: str) -> str:
    """Return the canonical name of a tool. Some namespaces already end with the separator."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith(SEPARATOR) else namespace + SEPARATOR + name


def parse_tool(value: Any, path: str) -> Toolset:
    """Return the tools of one definition. Raises RequestError."""
    definition = as_object(value, path)
    kind = as_string(definition.get("type"), f"{path}.type")
    if _DATED.sub("", kind) in HOSTED_TOOLS or (kind == SEARCH and definition.get("execution") != "client"):
        return Toolset(removed=(kind,))
    if kind == "namespace":
        return _namespace(definition, path)
    return _toolset(definition, None, path)


def parse_tools(value: Any, path: str) -> Toolset:
    """Return the tools of a list of definitions. Raises RequestError."""
    return joined(parse_tool(item, at) for item, at in as_items(value, path))


def joined(sets: Iterable[Toolset]) -> Toolset:
    """Return the union of several sets, in their order."""
    kept = list(sets)
    return Toolset(
        tools=tuple(tool for one in kept for tool in one.tools),
        removed=tuple(kind for one in kept for kind in one.removed),
        beside={name: more for one in kept for name, more in one.beside.items()},
    )


def forms_of(tools: Iterable[ResponsesTool]) -> dict[str, ToolForm]:
    """Return the forms of tools that are not plain functions. Raises RequestError if tools of different kinds share a name."""
    forms: dict[str, ToolForm] = {}
    for tool in tools:
        name = tool.shown["name"]
        if forms.setdefault(name, tool.form) != tool.form:
            malformed("tools", f"two tools are called {name!r}")
    return {name: form for name, form in forms.items() if form != ToolForm(name=name)}


def tools_text(tools: Iterable[ResponsesTool]) -> str:
    """Return definitions as text, for tools that appear in the middle of a history."""
    return json.dumps([tool.shown for tool in tools], ensure_ascii=False)


def _namespace(definition: dict[str, Any], path: str) -> Toolset:
    """Return the tools of a namespace. Its description precedes that of its first tool."""
    namespace = as_name(definition.get("name"), f"{path}.name")
    inner = [as_object(item, f"{path}.tools") for item in as_list(definition.get("tools"), f"{path}.tools")]
    about = definition.get("description")
    if inner and about is not None:
        both = (as_string(about, f"{path}.description"), inner[0].get("description"))
        inner[0] = inner[0] | {"description": "\n\n".join(str(text) for text in both if text)}
    more = beside(definition, TOOL.obeyed)
    own = Toolset(beside={namespace: more} if more else {})
    return joined([own, *(_toolset(item, namespace, f"{path}.tools[{index}]") for index, item in enumerate(inner))])


def _toolset(definition: dict[str, Any], namespace: str | None, path: str) -> Toolset:
    """Return one tool."""
    tool, more = _tool(definition, namespace, path), beside(definition, TOOL.obeyed)
    return Toolset(tools=(tool,), beside={tool.shown["name"]: more} if more else {})


def _tool(definition: dict[str, Any], namespace: str | None, path: str) -> ResponsesTool:
    kind = as_string(definition.get("type"), f"{path}.type")
    if _DATED.sub("", kind) in CLIENT_TOOLS:
        refuse(f"{path}.type", f"{kind!r} runs at the client by a schema that only its provider's models know; declare a function instead")
    if kind not in TOOL_KINDS:
        refuse(f"{path}.type", f"{kind!r} tools are not served, only functions, custom tools and namespaces of them")
    wire = SEARCH if kind == SEARCH else as_name(definition.get("name"), f"{path}.name")
    shown: Message = {"name": flat_name(namespace, wire)}
    if definition.get("description") is not None:
        shown["description"] = as_string(definition["description"], f"{path}.description")
    if kind == "custom":
        shown["parameters"] = _freeform(definition.get("format"), f"{path}.format")
    elif definition.get("parameters") is not None:
        shown["parameters"] = as_object(definition["parameters"], f"{path}.parameters")
    return ResponsesTool(shown=shown, form=ToolForm(name=wire, namespace=namespace, freeform=kind == "custom", search=kind == SEARCH))


def _freeform(value: Any, path: str) -> Message:
    """Return the parameters of a freeform tool. Its grammar is described, not enforced."""
    text: Message = {"type": "string"}
    form = {} if value is None else as_object(value, path)
    if form.get("type") == "grammar":
        syntax, grammar = (as_string(form.get(name), f"{path}.{name}") for name in ("syntax", "definition"))
        text["description"] = f"A text of this {syntax} grammar:\n{grammar}"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
