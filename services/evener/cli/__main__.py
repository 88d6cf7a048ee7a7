"""The command line: `evener COMMAND`. The modules of commands are imported when they are called, so that `--help` answers at once."""

import os
import sys
from typing import Final

from cyclopts import App, CycloptsError, Parameter, ValidationError

from evener.cli.errors import Usage, help_of
from evener.service.exits import complain, exit_code

COMMANDS: Final = {
    "up": "Run all six services and an engine in this process.",
    "demo": "Run the bundled tasks on the embedded engine, and write a report.",
    "run": "Run tasks with a harness and show their results.\n\n"
    "Uses the running `evener up`, or starts one for the duration of the command. Exits with 0 if every group was delivered, 1 if "
    "one was not, 3 if one has nothing to train.\n\n"
    "Ctrl-C leaves the run; the same command with its --run-id continues it.",
    "eval": "Evaluate harnesses on tasks: pass@1 and pass@k with intervals, as a table and a picture.",
    "tasks": "Import, list and validate tasks.",
    "cancel": "End a run.\n\nIts sessions are ended. A group fails if too few of its sessions had finished; delivered groups stay.",
    "record": "Record a program's model calls, or open a session for one.\n\n"
    "`evener record -- python agent.py` runs the program here, with the base URL and key variables of every provider set to a fresh "
    "session; its exit code is the command's. Without a program the session stays open until Ctrl-C, for any program that uses the printed "
    "base URL and key.",
    "show": "Show what happened in a session.",
    "runs": "List runs, or delete one.",
    "report": "Write a run as one HTML page.\n\n"
    "The page is self-contained: groups, time lines, a table of all sessions, and the tokens of as many as fit.",
    "rebuild": "Rebuild stored sessions and compare them with the record.",
    "regrade": "Grade stored sessions again, with corrected tests or another grader.",
    "audit": "Check what Evener promises from its log.",
    "groups": "Export delivered groups.",
    "engine": "Serve an engine, or let one join a running Evener.",
    "harness": "List, install and check harnesses.",
    "policy": "Publish weights of a policy, or show its versions.",
    "principal": "Draw a token for somebody, and print the entry of the file of principals.\n\n"
    "The token is shown once, on stderr; the file holds its SHA-256: `evener principal ann --team search >> principals.toml`.",
    "dead-letters": "List records that services could not read, or replay them.",
    "lag": "Show how far each instance is behind what it reads.",
    "topics": "Compare Kafka's topics and brokers with what Evener needs, or apply the difference.",
    "doctor": "Show what is missing on this machine, and how to get it.",
}
"""Command to help text, whose first line the list of commands shows. Each command is the function of that name in the module of that
name."""
GROUPS: Final = frozenset({"dead-letters", "engine", "groups", "harness", "policy", "runs", "tasks", "topics"})
"""Commands that have subcommands: `app` in their module."""

app = App(
    name="evener",
    help="Train language agents by reinforcement learning through the harness they will be used in.",
    help_epilogue="`evener COMMAND --help` tells more. `--debug` shows the traceback of an error. `--token TOKEN` (or `file:PATH`), "
    "otherwise EVENER_TOKEN, says who asks; without either it is the operator of this machine.",
    help_format="plaintext",
    version_flags=["--version"],
    default_parameter=Parameter(negative_bool=(), negative_iterable=()),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
)
for name, text in COMMANDS.items():
    app.command(f"evener.cli.{name.replace('-', '_')}:{'app' if name in GROUPS else name}", name=name, help=text)


def main() -> None:
    """Run the command in this process's arguments, and exit: 0, 2 for wrong usage, 1 for other errors."""
    words = sys.argv[1:]
    debug = "--debug" in words
    raise SystemExit(exit_code(lambda: call(_without_token([word for word in words if word != "--debug"])), debug=debug))


def _without_token(words: list[str]) -> list[str]:
    """Return the words without `--token TOKEN`, which is put where commands look for it. A program's words (behind `--`) are its own."""
    ours = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(ours):
        name, given, token = word.partition("=")
        if name == "--token" and (given or len(ours) > at + 1):
            os.environ["EVENER_TOKEN"] = token if given else ours[at + 1]
            return words[:at] + words[at + (1 if given else 2) :]
    return words


def call(words: list[str]) -> int:
    """Run one command; return its exit code. Raises what the command raises."""
    try:
        result = app(words)
    except CycloptsError as error:
        complain(f"{_told(error)} Try '{help_of(' '.join(error.command_chain or ()))}'.")
        return 2
    except Usage as error:
        error.command = " ".join(app.parse_commands(words)[0])
        raise
    return result if isinstance(result, int) else 0


def _told(error: CycloptsError) -> str:
    """Return what is wrong. Of an argument that takes several values, the error would show all of them, as Python writes them."""
    argument = error.argument
    if isinstance(error, ValidationError) and argument is not None and isinstance(argument.value, tuple):
        return f"Invalid value for {argument.name.upper()}. {error.exception_message}"
    return str(error)


if __name__ == "__main__":
    main()
