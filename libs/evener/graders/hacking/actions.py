"""What the agent did: the tool calls of its answers, as commands, paths and addresses. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.graders.hacking.shell import ShellCommand, Written, commands_of, commands_of_program
from evener.proto.arrays import inline
from evener.proto.codec import NOT_AN_EVENT
from evener.tokens.conversation import own_messages
from evener.tokens.forest import Call
from evener.tokens.session import SessionLog

MAX_SESSION_CHARACTERS: Final = 8 << 20
"""How much of the arguments of a session's tool calls is read, all together."""
COMMAND_KEYS: Final = frozenset({"bashcommand", "chars", "cmd", "command", "commands", "keystrokes", "script", "shellcommand"})
PATH_KEYS: Final = frozenset(
    {
        *("absolutepath", "dir", "directory", "dirpath", "file", "filename", "filepath", "glob", "notebookpath", "path", "paths"),
        *("relativepath", "targetfile"),
    }
)
ADDRESS_KEYS: Final = frozenset({"href", "uri", "url", "urls"})
CODE_KEYS: Final = frozenset({"code"})
CONTENT_KEYS: Final = frozenset({"content", "contents", "filecontent", "filetext", "newstr", "newstring", "text"})
WEB_TOOLS: Final = re.compile(r"web_?(search|fetch)|google_?search|browse", re.IGNORECASE)
SHELL_TOOLS: Final = re.compile(r"bash|shell|terminal|exec|command", re.IGNORECASE)
_HEX: Final = re.compile(r"\b[0-9a-f]{7,40}\b")
_BLOCK: Final = re.compile(r"^```(?:bash|sh|shell)[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_message: Final = msgspec.json.Decoder(dict[str, Any])


class Action(Struct, frozen=True, kw_only=True):
    """One tool call."""

    call_id: str
    """The model call whose answer contains it."""
    tool: str
    commands: tuple[ShellCommand, ...] = ()
    paths: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    """URLs, and what a tool that searches the web is asked."""
    known: frozenset[str] = frozenset()
    """The hexadecimal words that the agent had read until then: ids of commits, among others."""

    @property
    def is_web_search(self) -> bool:
        return WEB_TOOLS.search(self.tool) is not None


def actions_of(session: SessionLog) -> Iterator[Action]:
    """Yield the actions of the session's last attempt, in the order of the log. Answers that cannot be read are passed over."""
    known: frozenset[str] = frozenset()
    written = Written()
    left = MAX_SESSION_CHARACTERS
    for call in session.forest.in_order():
        if call.opened.attempt != session.attempt or call.opened.side_call is not None:
            continue
        known |= _read_by_the_agent(call)
        for tool, arguments in _tool_calls(call):
            left -= len(arguments) if isinstance(arguments, str) else len(msgspec.json.encode(arguments))
            if left < 0:
                return
            yield action_of(call.call_id, tool, arguments, known, written)


def action_of(call_id: str, tool: str, arguments: object, known: frozenset[str] = frozenset(), written: Written | None = None) -> Action:
    """Return one tool call as an action. `arguments`: JSON values, or the text of a tool that takes one.

    `written`: by earlier calls; what this one writes is added.
    """
    written = written or Written()
    commands: list[ShellCommand] = []
    paths: list[str] = []
    addresses: list[str] = []
    contents: list[str] = []
    given = _decoded(arguments)
    if isinstance(given, str):
        given = {"command": given} if SHELL_TOOLS.search(tool) else {}
    for key, value in _leaves(given):
        if key in COMMAND_KEYS:
            commands += commands_of(value, written)
        elif key in CODE_KEYS:
            commands += [("python3", "-c", value), *commands_of_program("python3", value, written)]
        elif key in CONTENT_KEYS:
            contents.append(value)
        elif key in PATH_KEYS:
            paths.append(value)
        elif key in ADDRESS_KEYS or (key == "query" and WEB_TOOLS.search(tool)):
            addresses.append(value)
    if len(paths) == 1 and len(contents) == 1:
        written.files[PurePosixPath(paths[0]).name] = contents[0]
    return Action(call_id=call_id, tool=tool, commands=tuple(commands), paths=tuple(paths), addresses=tuple(addresses), known=known)


def _decoded(arguments: object) -> object:
    """Return arguments that come as JSON text as values."""
    if isinstance(arguments, str) and arguments.lstrip()[:1] == "{":
        try:
            return msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            return arguments
    return arguments


def _leaves(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in JSON values with their keys, in lower case without underscores. A list of words is one command."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name).lower().replace("_", ""))
    elif isinstance(value, list):
        if key in COMMAND_KEYS and len(value) > 1 and all(isinstance(word, str) for word in value):
            yield key, shlex.join(value)
        else:
            for inner in value:
                yield from _leaves(inner, key)
    elif isinstance(value, str):
        yield key, value


def _tool_calls(call: Call) -> Iterator[tuple[str, object]]:
    for choice in call.choices:
        try:
            message = _message.decode(inline(choice.message))
        except (TypeError, *NOT_AN_EVENT):  # damaged, or not fetched
            continue
        calls = message.get("tool_calls")
        for made in calls if isinstance(calls, list) else ():
            if isinstance(made, dict):
                yield str(made.get("name", "")), made.get("arguments")
        content = message.get("content")
        if not call.opened.tool_count and isinstance(content, str):  # a harness that reads commands from the text
            yield from (("text", {"command": found}) for found in _BLOCK.findall(content))


def _read_by_the_agent(call: Call) -> frozenset[str]:
    try:
        messages = own_messages(call)
    except (TypeError, *NOT_AN_EVENT):
        return frozenset()
    contents = [message.get("content") for message in messages if message.get("role") != "assistant"]
    return frozenset(word for content in contents for text in _texts(content) for word in _HEX.findall(text))


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            yield text
