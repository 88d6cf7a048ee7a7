"""The command line: `evener COMMAND`. Imports of commands wait until they are called, so that `--help` answers at once."""

import sys
from typing import Final

from cyclopts import App, CycloptsError

from evener.service.exits import complain, exit_code

COMMANDS: Final = {
    "up": "Run all six services and an engine in this process.",
    "demo": "Run the bundled tasks on the embedded engine, and leave a report.",
    "run": "Run tasks with a harness, and show how they ended.\n\n"
    "Talks to the running `evener up`; where there is none, starts one for its own time. Exits with 0 if every group was delivered, 1 if "
    "one was not, 3 if one has nothing to train.\n\n"
    "Ctrl-C leaves the run; the same command with its --run-id goes on with it.",
    "cancel": "End a run.\n\nIts sessions are ended. A group fails where too few of its sessions had finished; what was delivered stays.",
    "record": "Record a program's model calls, or open a session for one.\n\n"
    "`evener record -- python agent.py` runs the program here, with the base URL and key variables of every provider set to a fresh "
    "session; its exit code is the command's. Without a program the session stays open until Ctrl-C, for whatever uses the printed "
    "base URL and key.",
    "show": "Show what happened in a session.",
    "runs": "List runs.",
    "report": "Write a run as one HTML page.\n\n"
    "Groups, time lines, a table of all sessions, and the tokens of as many as fit. It asks nobody for anything.",
    "rebuild": "Build stored sessions again, and compare them with what was recorded.",
    "groups": "Export what trainers get.",
    "engine": "Serve an engine that says what a script says, for tests and trials.",
    "harness": "List, install and check harnesses.",
    "policy": "Publish weights of a policy, and see what was published.",
    "replay": "Append a record once more that was given up as a dead letter.",
    "doctor": "Say what is missing on this machine, and how to get it.",
}
"""Name to help, its first line for the list; each is the function of that name, in the module of that name."""
GROUPS: Final = frozenset({"engine", "groups", "harness", "policy"})
"""Commands that have commands: `app` in their module."""

app = App(
    name="evener",
    help="Train language agents by reinforcement learning through the harness they will be used in.",
    help_epilogue="`evener COMMAND --help` tells more. `--debug` shows the traceback of an error.",
    help_format="plaintext",
    version_flags=["--version"],
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
)
for name, text in COMMANDS.items():
    app.command(f"evener.cli.{name}:{'app' if name in GROUPS else name}", name=name, help=text)


def main() -> None:
    """Run the command of this process's arguments, and exit: 0, 2 for wrong usage, 1 for the rest."""
    words = sys.argv[1:]
    debug = "--debug" in words
    raise SystemExit(exit_code(lambda: call([word for word in words if word != "--debug"]), debug=debug))


def call(words: list[str]) -> int:
    """Run one command; return its exit code."""
    try:
        result = app(words)
    except CycloptsError as error:
        complain(f"{error} Try 'evener --help'.")
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
