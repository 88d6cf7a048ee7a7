"""A session's forest of calls, for a terminal.

A branch is a list of calls, one per line. Where several calls continue one, the list continues with the largest branch, and the others hang
below that call.
"""

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from evener.client.session_views import AttemptView, CallView, SegmentView, SessionView

TREE_GUIDES = "grey50"


def forest(view: SessionView) -> Tree:
    """Return all calls of a session as a tree."""
    tree = Tree(Text(view.session_id, "bold"), guide_style=TREE_GUIDES)
    family = _Family(view.calls)
    attempts = sorted({call.attempt for call in view.calls} | {one.attempt for one in view.attempts})
    for attempt in attempts:
        within = tree.add(_attempt(attempt, view.attempts)) if len(attempts) > 1 else tree
        for root in family.children(None):
            if root.attempt == attempt:
                _branch(within, root, family)
    return tree


class _Family:
    """The children of each call, and the number of all its descendants."""

    def __init__(self, calls: Sequence[CallView]) -> None:
        self._children: dict[int | None, list[CallView]] = {}
        self.sizes = {call.number: 1 for call in calls}
        for call in reversed(calls):
            self._children.setdefault(call.parent, []).insert(0, call)
            if call.parent is not None:
                self.sizes[call.parent] += self.sizes[call.number]

    def children(self, number: int | None) -> list[CallView]:
        return self._children.get(number, [])


def _branch(tree: Tree, call: CallView, family: _Family) -> None:
    """Add a call and all that continue it: the largest branch on the same level, so that a long session stays flat."""
    while True:
        node = tree.add(_call(call))
        following = family.children(call.number)
        if not following:
            return
        call = max(following, key=lambda one: (family.sizes[one.number], one.number))
        for other in following:
            if other is not call:
                alone = family.sizes[other.number] == 1
                _branch(node if alone else node.add(Text("branch", "italic")), other, family)


def _attempt(attempt: int, views: Sequence[AttemptView]) -> Text:
    ended = next((one for one in views if one.attempt == attempt), None)
    text = Text(f"attempt {attempt}", "bold")
    if ended is not None and ended.termination_reason is not None:
        text.append(f" {ended.termination_reason.value} {ended.detail}".rstrip(), "not bold")
    return text


def _call(call: CallView) -> Text:
    """Return one line: number, place, size of the prompt, what was sampled and where it went, and remarks."""
    text = Text(f"#{call.number} ", "bold")
    text.append(*_placed(call))
    text.append(f"  prompt {call.given_tokens}" + (f" of {call.prompt_tokens}" if call.parent is not None else ""))
    if call.failure is not None:
        text.append(f"  failed: {call.failure.value}{f' ({call.detail})' if call.detail else ''}", "red")
    elif call.closed_at is None:
        text.append("  open", "yellow")
    for number, segment in enumerate(call.segments):
        text.append("; " if number else "  sampled ")
        _sampled(text, segment)
    for remark in _remarks(call):
        text.append(f"  {remark}", "yellow")
    return text


def _placed(call: CallView) -> tuple[str, str]:
    placement = call.placement
    if call.parent is None:
        return f"root: {placement.root.value if placement.root else 'unknown'}", "magenta"
    choice = f".{call.parent_choice}" if call.parent_choice else ""
    return f"extends #{call.parent}{choice}", "cyan"


def _sampled(text: Text, segment: SegmentView) -> None:
    text.append(f"{segment.tokens} {segment.finish_reason.value}")
    if segment.trained:
        text.append(f" → {segment.trained} in row {segment.rows[0]}" if segment.rows else f" → {segment.trained}", "green")
        if len(segment.rows) > 1:
            text.append(f" (context of {', '.join(map(str, segment.rows[1:]))})", "dim")
    for reason, tokens in segment.excluded.items():
        text.append(f" → {tokens} excluded: {reason.value}", "red")


def _remarks(call: CallView) -> list[str]:
    placement = call.placement
    said = {
        f"side call {call.side_call}": call.side_call is not None,
        f"frozen engine {call.engine_id}": call.policy is None,
        "not received": not call.received,
        f"retry of #{call.retry_of}": call.retry_of is not None,
        f"try {call.try_number}": call.try_number > 1,
        "came back altered": placement.altered,
        f"one of {placement.siblings} equal answers": placement.siblings > 1,
        f"{placement.reinstated_tokens} tokens reinstated": placement.reinstated_tokens > 0,
        f"recognised by {placement.matched_by}": placement.matched_by not in {None, "call_id", "content"},
        call.fidelity.value: call.fidelity.value != "fed",
    }
    return [remark for remark, holds in said.items() if holds]
