"""Commands in forks."""

import asyncio
import os
from collections.abc import Mapping
from typing import NamedTuple

from tests.support.forks import Command


class Ended(NamedTuple):
    """A command that has ended, and what it wrote."""

    code: int | None
    out: str
    errors: str


def run(*words: str, environment: Mapping[str, str] = os.environ) -> Ended:
    """Run `evener WORDS` to its end."""
    command = Command("-m", "evener.cli", *words, environment=environment)
    out, errors = command.communicate()
    return Ended(command.returncode, out, errors)


async def evener(*words: str, **variables: str) -> Ended:
    """Do the same beside a loop that goes on, with these variables in the environment."""
    return await asyncio.to_thread(run, *words, environment={**os.environ, **variables})


async def asked(url: str, token: str, *words: str) -> Ended:
    """Run a command at a running Evener."""
    return await evener(*words, EVENER_URL=url, EVENER_OPERATOR_TOKEN=token)
