"""`evener harness`: the agent programs that Evener can run."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from evener.proto.spec import Streaming

app = App(name="harness", help="List, install and check harnesses.", result_action="return_value")


@app.command(name="list")
async def list_(*, json: bool = False) -> int:
    """List the harnesses: version, dialects, whether they are installed, whether they have tools.

    Parameters
    ----------
    json
        Print JSON lines instead of a table.
    """
    from evener.cli.harness_bundles import entries, tell_entries

    tell_entries(entries(), json=json)
    return 0


@app.command
async def show(name: str) -> int:
    """Describe a harness and its options.

    Parameters
    ----------
    name
        As `evener harness list` shows it.
    """
    from evener.cli.harness_bundles import description
    from evener.cli.output import console

    console().print(description(name), soft_wrap=True, markup=False, highlight=False)
    return 0


@app.command
async def install(*names: str, all_: Annotated[bool, Parameter(name="--all")] = False) -> int:
    """Install harnesses for this user. A runner installs them at first use. Exits with 1 if one could not be installed.

    Parameters
    ----------
    names
        As `evener harness list` shows them.
    all_
        Install all harnesses: 3.3 GB.
    """
    from evener.cli.errors import Usage
    from evener.cli.harness_bundles import bring_each, packaged
    from evener.harnesses.registry import harness

    wanted = packaged() if all_ else names
    if not wanted:
        msg = f"name the harnesses to install ({', '.join(packaged())}), or give --all"
        raise Usage(msg)
    return await bring_each([harness(name) for name in wanted])


@app.command
async def check(
    name: str,
    *,
    option: dict[str, str] | None = None,
    streaming: Streaming = Streaming.BUFFERED,
    sandbox: str | None = None,
    trust_local: bool = False,
    json: bool = False,
    state: Path | None = None,
) -> int:
    """Run the real program through a whole Evener with a scripted engine; show what became of every token.

    The script makes it write some files with its own tools. Exits with 1 and a reason if something is wrong.

    Parameters
    ----------
    name
        The harness.
    option
        Its options: `--option.settings plain`, ...
    streaming
        When answers leave: `buffered`, or `live`.
    sandbox
        Where it runs: `docker`, `bubblewrap` or `local`. Default: `bubblewrap` if that works and the harness has tools.
    trust_local
        Let it run on this machine, with your rights.
    json
        Print JSON instead of a table.
    state
        State folder to keep everything in. Default: a temporary one.
    """
    from evener.cli.harness_check import check_harness
    from evener.cli.submission import harness_spec

    return await check_harness(
        harness_spec(name, option or {}), streaming, sandbox=sandbox, trust_local=trust_local, json=json, state=state
    )
