"""Examines what a policy's template can extend, for `evener doctor --policy` and `docs/templates.md`.

A turn is followed by each kind of message. Either the sampled ids are extended, or the call starts a new root with a reason.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, structs

from evener.proto.sessions import BridgedBy, RootReason
from evener.proto.spec import Thinking
from evener.templates.config import PolicyConfig
from evener.templates.family import SYSTEM
from evener.templates.open import Material, make_renderer
from evener.templates.port import Renderer, TemplateError
from evener.templates.renderer import JinjaRenderer
from evener.tokens.digests import Message

USER: Final[Message] = {"role": "user", "content": "Where is Ada?"}
TOOLS: Final[tuple[Message, ...]] = (
    {
        "name": "find",
        "description": "Finds a person.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
)
REASONING: Final = "I should look."
FAMILY, RENDERS, REFUSED = "extends", "two renders", "refused"
"""Outcomes besides `root: REASON`: extended at the same cost for any length; extended at a cost that grows with the history; the template
raises an error."""


class Following(Struct, frozen=True, kw_only=True):
    """What happens when these messages follow a turn."""

    what: str
    reasoning: bool
    """Whether the turn had reasoning."""
    thinking: Thinking
    outcome: str


class Conformance(Struct, frozen=True, kw_only=True):
    """The properties of a template."""

    family: str | None
    """The family whose rules extend turns. None: the difference of two renders does."""
    template: str
    """`own`, the name of a bundled template, or a file's path."""
    renders_tools: bool
    """Whether the prompt shows the tools of a request."""
    tool_parser: str
    followings: tuple[Following, ...]
    forged_stay_text: bool
    """Whether control tokens spelled in a tool result stay text, in whole renders and in bridges."""


def calling(count: int) -> Message:
    """Return an answer with this many tool calls."""
    calls = [{"id": f"callc1x0x{index}", "name": "find", "arguments": {"name": f"Ada {index}"}} for index in range(count)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def results(count: int, text: str = "In the garden.") -> list[Message]:
    """Return the results of this many calls."""
    return [{"role": "tool", "tool_call_id": f"callc1x0x{index}", "content": text} for index in range(count)]


PLAIN_ANSWER: Final[Message] = {"role": "assistant", "content": "In the garden."}
ASKED: Final[tuple[Message, ...]] = (SYSTEM, USER)
CALLED: Final[tuple[Message, ...]] = (*ASKED, calling(1), *results(1))
CASES: Final[tuple[tuple[str, Sequence[Message], Message, list[Message]], ...]] = (
    ("one tool result", ASKED, calling(1), results(1)),
    ("one more tool result", CALLED, calling(1), results(1)),
    ("several tool results", ASKED, calling(3), results(3)),
    ("a user turn", ASKED, PLAIN_ANSWER, [{"role": "user", "content": "And Bob?"}]),
    ("a user turn after tools", CALLED, PLAIN_ANSWER, [{"role": "user", "content": "And Bob?"}]),
    ("a system turn", ASKED, PLAIN_ANSWER, [{"role": "system", "content": "Be briefer."}]),
)
"""The cases: a name, the history, the turn, and the messages that follow it."""


def examine(material: Material, config: PolicyConfig) -> Conformance:
    """Open a policy, whose files are read, with both `thinking` options and try every case. Raises TemplateError if it cannot be opened."""
    renderers = {
        thinking: make_renderer(material, structs.replace(config, options=structs.replace(config.options, thinking=thinking)))
        for thinking in Thinking
    }
    plain = renderers[config.options.thinking]
    followings = [
        Following(what=what, reasoning=reasoning, thinking=thinking, outcome=_outcome(renderer, thinking, before, answer, new))
        for what, before, asked, new in CASES
        for reasoning in ((False, True) if plain.reads_reasoning else (False,))
        for thinking, renderer in renderers.items()
        for answer in [{**asked, "reasoning": REASONING} if reasoning else asked]
    ]
    return Conformance(
        family=plain.family,
        template=plain.template_name,
        renders_tools=plain.renders_tools,
        tool_parser=plain.tool_parser,
        followings=tuple(followings),
        forged_stay_text=all(_forged_stay_text(renderer) for renderer in renderers.values()),
    )


def _outcome(renderer: Renderer, thinking: Thinking, before: Sequence[Message], answer: Message, new: Sequence[Message]) -> str:
    try:
        bridge = renderer.bridge(before, answer, new, TOOLS, closed=True)
    except TemplateError:
        return REFUSED
    if bridge is not None:
        return FAMILY if bridge.by is BridgedBy.RENDERER else RENDERS
    bare = {name: value for name, value in answer.items() if name != "reasoning"}
    stripped = thinking is Thinking.TEMPLATE and bare != answer and renderer.bridge(before, bare, new, TOOLS, closed=True) is not None
    return f"root: {(RootReason.THINKING_STRIPPED if stripped else RootReason.NO_BRIDGE).value}"


def _forged_stay_text(renderer: JinjaRenderer) -> bool:
    """Compare a tool result that spells every control token with one that spells none, in a whole render and in a bridge."""
    forgery = b"".join(renderer.pieces(renderer.control_ids)).decode()
    honest, forged = (_controls(renderer, results(1, text)) for text in ("ok", f"a{forgery}b"))
    return honest == forged


def _controls(renderer: JinjaRenderer, new: list[Message]) -> list[int]:
    """Return the control tokens of a whole render and of a bridge."""
    bridge = renderer.bridge([USER], calling(1), new, TOOLS, closed=True)
    ids = [*renderer.render([USER, calling(1), *new], TOOLS).tolist(), *([] if bridge is None else bridge.ids.tolist())]
    control = frozenset(renderer.control_ids)
    return [id_ for id_ in ids if id_ in control]
