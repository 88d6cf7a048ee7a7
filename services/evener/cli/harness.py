"""`evener harness`: the agent programs that Evener can run."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from evener.proto.spec import Streaming

app = App(name="harness", help="List, install and check harnesses.", result_action="return_value")
Flag = Annotated[bool, Parameter(negative="")]


@app.command(name="list")
async def list_(*, json: Flag = False) -> int:
    """Say which harnesses there are: version, dialects, whether they are installed and have tools.

    Parameters
    ----------
    json
        Print JSON lines instead of a table.
    """
    from evener.cli.harness_bundles import entries, table
    from evener.cli.progress import console, tell

    found = entries()
    if json:
        for entry in found:
            tell(entry)
    else:
        console().print(table(found))
    return 0


@app.command
async def show(name: str) -> int:
    """Say what a harness is, and which options it has.

    Parameters
    ----------
    name
        As `evener harness list` shows it.
    """
    from evener.cli.harness_bundles import description
    from evener.cli.progress import console

    console().print(description(name), soft_wrap=True, markup=False, highlight=False)
    return 0


@app.command
async def install(*names: str, all_: Annotated[bool, Parameter(name="--all", negative="")] = False) -> int:
    """Install harnesses for this user; a runner does so by itself at first use. Exits with 1 where one could not be installed.

    Parameters
    ----------
    names
        As `evener harness list` shows them.
    all_
        All that there are: 3.3 GB.
    """
    from evener.cli.errors import Usage
    from evener.cli.harness_bundles import bring_each, packaged
    from evener.cli.submitting import known_harness

    wanted = packaged() if all_ else names
    if not wanted:
        msg = f"name what to install ({', '.join(packaged())}), or say --all"
        raise Usage(msg)
    return await bring_each([known_harness(name) for name in wanted])


@app.command
async def check(
    name: str,
    *,
    option: Annotated[dict[str, str] | None, Parameter(negative="")] = None,
    streaming: Streaming = Streaming.HOLD,
    trust_local: Flag = False,
    json: Flag = False,
    state: Path | None = None,
) -> int:
    """Run the real program through a whole Evener with an engine that says what a script says; show what became of every token.

    The script has it write some files with its own tools. Exits with 1, and one line that says why, where something is wrong.

    Parameters
    ----------
    name
        The harness.
    option
        Its options: `--option.settings plain`, ...
    streaming
        When answers leave: `hold`, or `live`.
    trust_local
        Let it run on this machine, with your rights.
    json
        Print JSON instead of a table.
    state
        State folder to leave everything in. None: a new one, removed afterwards.
    """
    from evener.cli.harness_checking import check_harness
    from evener.cli.submitting import harness_spec

    return await check_harness(harness_spec(name, option or {}), streaming, trust_local=trust_local, json=json, state=state)
