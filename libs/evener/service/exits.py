"""How a program of Evener exits: with 0, 2 for wrong usage or configuration, 1 for other errors; with one line and no traceback."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from evener.proto.errors import ConfigError, EvenerError

CONTROL_CHARACTERS: Final = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}


def exit_code(run: Callable[[], int], *, debug: bool = False) -> int:
    """Return what `run` returns, or the code of its error, which is printed as one line on stderr. `debug`: raise the error instead."""
    try:
        return run()
    except BrokenPipeError:
        print_no_more()
        return 0
    except (EvenerError, OSError, EOFError) as error:
        if debug:
            raise
        complain(_told(error))
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def print_no_more() -> None:
    """Discard further output: the pipe has no reader, and the interpreter would report an error when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def complain(message: str) -> None:
    """Write one line to stderr, which may fail if it is a file on a full disk."""
    with suppress(OSError):
        sys.stderr.write(f"evener: {' '.join(visible(message).split())}\n")


def visible(text: str) -> str:
    """Return a text with control characters, except line ends and tabs, made visible, so that they do nothing to a terminal."""
    return text.translate(CONTROL_CHARACTERS)
