"""Reads shell text as the commands that it runs, to find what an agent tried. It is no shell: text that it cannot read is split. Pure."""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

MAX_SHELL_CHARACTERS: Final = 64 << 10
"""How much of a text is read."""
MAX_SHELLS: Final = 4
"""How deep commands in commands are read."""
SEPARATORS: Final = frozenset(";&|()\n")
SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ash"})
INTERPRETERS: Final = frozenset({"python", "python2", "python3", "node", "ruby", "perl"})
WRAPPERS: Final = frozenset({"command", "env", "exec", "nice", "nohup", "setsid", "stdbuf", "sudo", "time", "timeout", "xargs"})
"""Programs that run the command which follows them."""
KEYWORDS: Final = frozenset({"if", "then", "else", "elif", "while", "until", "do", "done", "fi", "eval", "{", "}", "!"})
CODE_OPTION: Final = dict.fromkeys(("node", "ruby", "perl"), "-e")
GIT_VALUES: Final = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"})
"""Options of git itself that take a value."""
REDIRECTION: Final = frozenset("<>&0123456789")
SYSTEM_PROGRAMS: Final = ("/bin/", "/usr/", "/opt/")
_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_ASSIGNMENT: Final = re.compile(r"^[A-Za-z_]\w*=")
_NUMBER: Final = re.compile(r"^\d+(\.\d+)?[smhd]?$")
_NESTED: Final = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")

ShellCommand = tuple[str, ...]
"""The words of one command: its program by its name without a folder, its arguments, and the path of a program that is not the system's."""


def commands_of(text: str, depth: int = 0) -> Iterator[ShellCommand]:
    """Yield the commands of shell text, also those in `sh -c`, in `$(...)` and in what a shell reads from a here-document.

    Programs that an interpreter gets that way come as ("python3", "-c", PROGRAM).
    """
    if depth > MAX_SHELLS:
        return
    for line, document in _without_documents(text[:MAX_SHELL_CHARACTERS]):
        found = [command for words in _split(line) if (command := _plain(words))]
        for command in found:
            yield command
            yield from _inner(command, depth)
        if document and found:
            program = found[-1][0]
            if program in SHELLS:
                yield from commands_of(document, depth + 1)
            elif program in INTERPRETERS:
                yield (program, "-c", document)


def program_text(command: ShellCommand) -> str | None:
    """Return the program that an interpreter is given in its arguments. None: the command is another one."""
    option = CODE_OPTION.get(command[0], "-c")
    if command[0] in INTERPRETERS and option in command[1:-1]:
        return command[command.index(option, 1) + 1]
    return None


def git_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command of git in its arguments, and the words after it. Empty: there is none."""
    left = list(words)
    while left and left[0].startswith("-"):
        left = left[2:] if left[0] in GIT_VALUES else left[1:]
    return (left[0], left[1:]) if left else ("", [])


def _inner(command: ShellCommand, depth: int) -> Iterator[ShellCommand]:
    program, *words = command
    if program in SHELLS:
        for option, text in pairwise(words):
            if option.startswith("-") and not option.startswith("--") and option.endswith("c"):
                yield from commands_of(text, depth + 1)
    if program == "find":
        for at in (at for at, word in enumerate(words) if word in {"-exec", "-execdir"}):
            if inner := _plain(words[at + 1 :]):
                yield inner
    for word in words:
        for found in _NESTED.finditer(word):
            yield from commands_of(found[1] or found[2] or "", depth + 1)


def _without_documents(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text in pieces, each with the here-document that follows it."""
    lines = iter(text.replace("\\\n", " ").split("\n"))
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if (found := _HEREDOC.search(line)) is not None:
            document: list[str] = []
            for inner in lines:
                if inner.strip() == found[2]:
                    break
                document.append(inner)
            piece[-1] = line.replace(found[0], " ")
            yield "\n".join(piece), "\n".join(document)
            piece = []
    yield "\n".join(piece), ""


def _split(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:  # an open quote
        words = text.replace("\n", " ; ").split()
    command: list[str] = []
    is_comment = False
    for word in words:
        if set(word) <= SEPARATORS:
            is_comment = is_comment and "\n" not in word
            if not is_comment:
                yield command
                command = []
        elif not is_comment:
            is_comment = word.startswith("#")
            if not is_comment:
                command.append(word)
    yield command


def _plain(words: list[str]) -> ShellCommand:
    """Return a command without what stands before its program. Empty: there is no program."""
    at = 0
    while at < len(words):
        word = words[at]
        name = PurePosixPath(word).name
        if name in WRAPPERS:
            at += 1
            while at < len(words) and (words[at].startswith("-") or _NUMBER.match(words[at])):
                at += 1
        elif word in KEYWORDS or word == "$" or _ASSIGNMENT.match(word) or set(word) <= REDIRECTION:
            at += 1
        else:
            own = (word,) if "/" in word and not word.startswith(SYSTEM_PROGRAMS) else ()
            return (name or word, *words[at + 1 :], *own)
    return ()
