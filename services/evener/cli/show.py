"""`evener show`: what happened in a session."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="")]


async def show(
    session: str, *, tokens: Flag = False, json: Flag = False, strategy: Literal["tree", "per_call"] = "tree", state: Path | None = None
) -> int:
    """Show a session that has ended: its end, its calls, and the conversation of each of its rows.

    Parameters
    ----------
    session
        Session id, as `evener run` and the report show it: `TASK.0`, `TASK.1`, ...
    tokens
        Show the rows as tokens: sampled ones coloured by their probability, underlined where they are trained.
    json
        Print the trajectory as JSON instead.
    strategy
        How rows are cut from the session's calls.
    state
        State folder of the Evener to use.
    """
    from evener.cli.progress import console, tell
    from evener.cli.running import evener
    from evener.cli.showing import conversations, heading, token_rows
    from evener.proto.spec import Strategy

    async with evener(state) as client:
        view = await client.session(session, strategy=Strategy(strategy))
        if json:
            tell(view)
            return 0
        out = console()
        out.print(heading(view.trajectory))
        out.print(await token_rows(client, view.trajectory) if tokens else conversations(view))
    return 0
