"""`evener show`: shows what happened in a session."""

from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

WHOLE_LINES: Final = 4096
"""The width in characters without a terminal, so that nothing is cut."""


async def show(
    session: str,
    *,
    messages: bool = False,
    tokens: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True)] = None,
    grader: bool = False,
    json: bool = False,
    strategy: Literal["tree", "per_call"] = "tree",
    state: Path | None = None,
) -> int:
    """Show a session: its end, reward and use, a tree of its calls, where every sampled token went, and the end of its grader's output.

    Parameters
    ----------
    session
        Session id, as `evener run` and the report show it: `TASK.0`, `TASK.1`, ...
    messages
        Show the conversation of each row instead.
    tokens
        Show the rows as tokens instead: sampled ones coloured by their probability, underlined if they are trained. With the numbers of
        rows: only those, one token per line, with loss mask, logprob and policy version.
    grader
        Show the whole output of its grader instead.
    json
        Print everything as one JSON object instead.
    strategy
        How rows are cut from the session's calls.
    state
        State folder of the Evener to use.
    """
    if sum((messages, tokens is not None, grader, json)) > 1:
        from evener.cli.errors import Usage

        msg = "--messages, --tokens, --grader and --json contradict each other: give one"
        raise Usage(msg)
    from evener.cli.connection import connect
    from evener.cli.output import console, tell
    from evener.cli.session_grade import grade_facts, graded, outputs, with_score
    from evener.cli.session_remarks import notes
    from evener.cli.session_text import accounts, conversations, heading
    from evener.cli.session_tokens import token_rows, token_table
    from evener.cli.session_tree import forest
    from evener.proto.spec import Strategy

    async with connect(state) as client:
        view = await client.session(session, strategy=Strategy(strategy))
        known = await graded(client, session) if view.trajectory else None
        out = console()
        if json:
            tell(with_score(view, known))
        elif tokens:
            out.print(await token_table(client, view.told.spec.policy, view.told.rows, tokens), soft_wrap=True)
        else:
            out.print(heading(view, grade_facts(view, known)))
            if tokens is not None:
                out.print(await token_rows(client, view.told.spec.policy, view.told.rows))
            elif messages:
                out.print(conversations(view))
            elif not grader:
                (out if out.is_terminal else console(width=WHOLE_LINES)).print(forest(view), soft_wrap=not out.is_terminal)
                out.print(notes(view), soft_wrap=not out.is_terminal)
            out.print(accounts(view))
            if grader or not (messages or tokens is not None):
                out.print(outputs(known, whole=grader))
    return 0
