"""`evener policy`: weights into running engines, and what there is."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import ExistingDirectory, ExistingFile
from cyclopts.validators import Number

app = App(name="policy", help="Publish weights of a policy, and see what was published.", result_action="return_value")


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
    """Load a folder of weights into the policy's engines, prove that they sample by it, and publish it as a version.

    Calls under way run on across the update. Where an engine shows the weights wrong, all get the version before again.

    Parameters
    ----------
    folder
        A Hugging Face folder that the engines can read under the same path; its own for each version.
    version
        A number above all earlier ones. The same again, with the same weights, changes nothing.
    policy
        The policy whose weights they are.
    canary
        JSON file: `{"prompts": [{"ids": [...], "logprobs": [null, ...]}], "tolerance": 0.001}`, with the trainer's logprobs.
    digest
        What the weights' digest must be.
    state
        State folder of the Evener to use.
    """
    from evener.cli.progress import tell
    from evener.cli.publishing import read_canary
    from evener.cli.running import evener
    from evener.service.exits import complain

    wanted = None if canary is None else read_canary(canary)
    async with evener(state) as client:
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
    from evener.cli.publishing import show_policies
    from evener.cli.running import evener

    async with evener(state) as client:
        show_policies(await client.policies())
    return 0


@app.command
async def show(policy: str = "policy", *, state: Path | None = None) -> int:
    """Show the versions of a policy: published, on their way, or rolled back and why.

    Parameters
    ----------
    policy
        Its name.
    state
        State folder of the Evener to use.
    """
    from evener.cli.publishing import show_policy
    from evener.cli.running import evener

    async with evener(state) as client:
        show_policy(await client.policy(policy))
    return 0
