"""Shows what a policy's chat template can extend, as a table."""

import os
from typing import Final

from msgspec import structs
from rich.text import Text

from evener.cli.output import console, table, tell
from evener.proto.errors import ConfigError
from evener.proto.sessions import RootReason
from evener.proto.spec import Thinking
from evener.provider_gateway.config import Config as GatewayConfig
from evener.service.config_app import load
from evener.templates.config import PolicyConfig
from evener.templates.conformance import CASES, FAMILY, REFUSED, RENDERS, Conformance, examine
from evener.templates.open import read
from evener.tokens.remarks import HOW_TO_KEEP_THINKING

STRIPPED: Final = RootReason.THINKING_STRIPPED.value
STYLES: Final = {FAMILY: "green", RENDERS: "green", REFUSED: "red"}


def conforms(policy: str, template: str | None) -> bool:
    """Examine a policy, by name or source, and report. False: not even a tool result extends, or control tokens can be forged."""
    config = _config(policy)
    asked = structs.replace(config, template=template) if template else config
    found = examine(read(asked), asked)
    _report(config, found)
    first = [one.outcome in {FAMILY, RENDERS} for one in found.followings if one.what == CASES[0][0]]
    return found.forged_stay_text and any(first)


def _config(policy: str) -> PolicyConfig:
    if policy.partition(":")[0] in {"hf", "gguf"} and ":" in policy:
        return PolicyConfig(name="policy", source=policy)
    configured = load(GatewayConfig, [], os.environ, "provider_gateway").policies
    for config in configured:
        if config.name == policy:
            return config
    msg = f"no policy {policy!r} is configured (there is {', '.join(one.name for one in configured)}); a source is hf:FOLDER or gguf:FILE"
    raise ConfigError(msg)


def _report(config: PolicyConfig, found: Conformance) -> None:
    """Write a table on a terminal, otherwise JSON lines."""
    out = console()
    if not out.is_terminal:
        tell(
            {
                "family": found.family,
                "template": found.template,
                "renders_tools": found.renders_tools,
                "tool_parser": found.tool_parser,
                "forged_stay_text": found.forged_stay_text,
            }
        )
        for following in found.followings:
            tell(following)
        return
    by = "two renders" if found.family is None else f"the rules of {found.family}, else two renders"
    forged = Text("stay text", "green") if found.forged_stay_text else Text("are believed", "red")
    out.print(f"{config.source}\nextended by {by}; spelling of tool calls: {found.tool_parser}", highlight=False)
    never = Text('never shown: use template = "chatml_tools", or one that renders them', "red")
    tools = Text("shown", "green") if found.renders_tools else never
    out.print(Text.assemble(f"template: {found.template}; tools of a request are ", tools))
    out.print(Text.assemble("control tokens that a tool result spells ", forged, "\n"))
    shown = table("after a turn comes", *(f"thinking = {thinking.value}" for thinking in Thinking))
    rows: dict[str, list[Text]] = {}
    for one in found.followings:
        style = STYLES.get(one.outcome, "yellow")
        rows.setdefault(f"{one.what}, reasoned" if one.reasoning else one.what, []).append(Text(one.outcome, style))
    for what, outcomes in rows.items():
        shown.add_row(what, *outcomes)
    out.print(shown)
    if any(STRIPPED in one.outcome and one.thinking is Thinking.TEMPLATE for one in found.followings):
        out.print(
            f"\n{STRIPPED}: the template drops earlier reasoning there, and a row begins; {HOW_TO_KEEP_THINKING}",
            style="yellow",
            highlight=False,
        )
    out.print("\nextends: at the same cost for any length; two renders: extends, at a cost that grows with the history", style="dim")
