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
MAX_TOOL_CHARACTERS: Final = 300
"""How much of the name of a tool is read."""
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
    number: int = 0
    """How many came before it."""

    @property
    def is_web_search(self) -> bool:
        return WEB_TOOLS.search(self.tool) is not None


class TooMuchDone(Exception):
    """The tool calls of a session are longer than what is read of them."""


def actions_of(session: SessionLog, read: dict[str, int]) -> Iterator[Action]:
    """Yield the actions of the session's last attempt, in the order of the log. Answers that cannot be read are passed over.

    `read` is filled with the hexadecimal words that the agent read, ids of commits among others: each with the number of the first action
    that could know it. Raises TooMuchDone after the actions that are read.
    """
    written = Written()
    left, number = MAX_SESSION_CHARACTERS, 0
    for call in session.forest.in_order():
        if call.opened.attempt != session.attempt or call.opened.side_call is not None:
            continue
        for word in _read_by_the_agent(call):
            read.setdefault(word, number)
        for tool, arguments in _tool_calls(call):
            left -= len(tool) + (len(arguments) if isinstance(arguments, str) else len(msgspec.json.encode(arguments)))
            if left < 0:
                msg = f"its tool calls have more than {MAX_SESSION_CHARACTERS >> 20} MB of arguments: the last were not looked at"
                raise TooMuchDone(msg)
            yield action_of(call.call_id, tool, arguments, number, written)
            number += 1


def action_of(call_id: str, tool: str, arguments: object, number: int = 0, written: Written | None = None) -> Action:
    """Return one tool call as an action. `arguments`: JSON values, or the text of a tool that takes one.

    `written`: by earlier calls; what this one writes is added.
    """
    written = written or Written()
    tool = tool[:MAX_TOOL_CHARACTERS]
    asks_the_web = WEB_TOOLS.search(tool) is not None
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
        elif key in ADDRESS_KEYS or (key == "query" and asks_the_web):
            addresses.append(value)
    if len(paths) == 1 and len(contents) == 1:
        written.files[PurePosixPath(paths[0]).name] = contents[0]
    return Action(call_id=call_id, tool=tool, commands=tuple(commands), paths=tuple(paths), addresses=tuple(addresses), number=number)


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
    left = [(key, value)]
    while left:  # not by recursion: each text would pass through as many generators as it lies deep
        key, value = left.pop()
        if isinstance(value, Mapping):
            left += reversed([(str(name).lower().replace("_", ""), inner) for name, inner in value.items()])
        elif isinstance(value, list) and key in COMMAND_KEYS and len(value) > 1 and all(isinstance(word, str) for word in value):
            yield key, shlex.join(value)
        elif isinstance(value, list):
            left += reversed([(key, inner) for inner in value])
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


def _read_by_the_agent(call: Call) -> Iterator[str]:
    try:
        messages = own_messages(call)
    except (TypeError, *NOT_AN_EVENT):
        return
    contents = [message.get("content") for message in messages if message.get("role") != "assistant"]
    yield from (found[0] for content in contents for text in _texts(content) for found in _HEX.finditer(text))


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            yield text
