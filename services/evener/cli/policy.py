"""`evener policy`: publishes weights to running engines, and shows what was published."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import ExistingDirectory, ExistingFile
from cyclopts.validators import Number

app = App(name="policy", help="Publish weights of a policy, or show its versions.", result_action="return_value")


@app.command
async def publish(
    folder: ExistingDirectory,
    *,
    version: Annotated[int, Parameter(validator=Number(gte=1))],
    policy: str = "policy",
    canary: ExistingFile | None = None,
    digest: str | None = None,
    state: Path | None = None,
) -> int:
    """Load a folder of weights into the policy's engines, prove that they sample from it, and publish it as a version.

    Calls in progress continue across the update. If an engine shows that the weights are wrong, all engines get the previous version again.

    Parameters
    ----------
    folder
        A Hugging Face folder that the engines can read under the same path. Each version needs a folder of its own.
    version
        A number above all earlier ones. Publishing the same weights again under the same number changes nothing.
    policy
        The policy whose weights these are.
    canary
        JSON file: `{"prompts": [{"ids": [...], "logprobs": [null, ...]}], "tolerance": 0.001}`, with the trainer's logprobs.
    digest
        The digest that the weights must have.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.output import tell
    from evener.cli.policy_tables import read_canary
    from evener.service.exits import complain

    wanted = None if canary is None else read_canary(canary)
    async with connect(state) as client:
        answer = await client.publish(policy, version, str(folder.absolute()), digest=digest, canary=wanted)
    for warning in answer.warnings:
        complain(f"warning: {warning}")
    tell(answer)
    return 0


@app.command(name="list")
async def listed(*, state: Path | None = None) -> int:
    """Show each policy's newest version.

    Parameters
    ----------
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.policy_tables import show_policies

    async with connect(state) as client:
        show_policies(await client.policies())
    return 0


@app.command
async def show(policy: str = "policy", *, state: Path | None = None) -> int:
    """Show the versions of a policy: published, being published, or rolled back and why.

    Parameters
    ----------
    policy
        Its name.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.policy_tables import show_policy

    async with connect(state) as client:
        show_policy(await client.policy(policy))
    return 0
