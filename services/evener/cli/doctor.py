"""`evener doctor`: what is missing and how to get it, or what a policy's chat template can extend."""

from pathlib import Path


async def doctor(*, state: Path | None = None, policy: str | None = None, template: str | None = None) -> int:
    """Show what this machine has and lacks. Exits with 1 if something is missing that every use needs.

    Parameters
    ----------
    state
        State folder of the Evener to use.
    policy
        Examine this policy's chat template instead: what extends a conversation, and what starts a new root. A name in the configuration
        (EVENER_CONFIG), or a source: hf:FOLDER, gguf:FILE or gguf:package:NAME. Exits with 1 if not even a tool result extends.
    template
        With `--policy`: examine another template, by a bundled one's name or a file.
    """
    if template is not None and policy is None:
        from evener.cli.errors import Usage

        msg = "--template is another template of a policy: name it with --policy"
        raise Usage(msg)
    if policy is not None:
        from evener.cli.template_report import conforms

        return 0 if conforms(policy, template) else 1
    from evener.cli.checkup import checkup, report

    checks = await checkup(state)
    report(checks)
    return 0 if all(check.good or not check.needed for check in checks) else 1
