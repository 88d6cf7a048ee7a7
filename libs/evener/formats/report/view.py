"""What the page shows, as plain values that the template only places. Pure."""

import statistics
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from evener.formats.summary import Summary
from evener.proto.trajectories import GroupMerged, GroupOutcome, Member

NO_NUMBER: Final = "\u2013"
NO_SPREAD: Final = 1e-9
"""A group whose rewards have a smaller standard deviation teaches nothing."""


class Bar(Struct, frozen=True):
    """One session's reward, as percentages of the chart's height."""

    index: int
    bottom: float
    height: float
    negative: bool
    label: str
    """The reward in words, or why there is none."""
    value: str
    excluded: bool


class GroupCard(Struct, frozen=True):
    """The card of a group."""

    name: str
    result: str
    """`merged`, `kept`, `failed` or `dropped`."""
    reason: str
    bars: tuple[Bar, ...]
    mean: str
    mean_at: float | None
    """The mean reward as a percentage of the chart's height."""
    spread: str
    """The standard deviation of the rewards. Empty: there are fewer than two rewards."""
    flat: bool
    """Whether all rewards are equal."""
    empty: bool
    """Whether the group was delivered to trainers without a token to train."""
    spoken: str
    """The chart's content as text, for screen readers."""


class Share(Struct, frozen=True):
    """A part of all sampled tokens."""

    name: str
    tokens: int
    percent: float
    delivered: bool


def group_card(event: GroupOutcome) -> GroupCard:
    """Return the card of a group."""
    rewards = [member.reward for member in event.members if member.reward is not None]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    mean = statistics.fmean(rewards) if rewards else None
    spread = statistics.pstdev(rewards) if rewards else 0.0
    told = ", ".join("none" if member.reward is None else number(member.reward) for member in event.members)
    return GroupCard(
        name=task_name(event),
        result=_result(event),
        reason="" if isinstance(event, GroupMerged) else event.reason,
        bars=tuple(_bar(index, member, low, high) for index, member in enumerate(event.members)),
        mean=NO_NUMBER if mean is None else number(mean),
        mean_at=None if mean is None else _percent(mean - low, high - low),
        spread=number(spread) if len(rewards) > 1 else "",
        flat=len(rewards) > 1 and spread < NO_SPREAD,
        empty=isinstance(event, GroupMerged) and event.purpose.value == "train" and not event.accounting.delivered,
        spoken=f"Rewards by sample: {told}." + ("" if mean is None else f" Mean {number(mean)}."),
    )


def task_name(event: GroupOutcome) -> str:
    """Return the name of a group's task, or its group id if no session carries the name."""
    tasks = (member.scored.trajectory.spec.task for member in event.members if member.scored is not None)
    return next((task.name for task in tasks if task is not None), event.group_id)


def shares(summary: Summary) -> tuple[Share, ...]:
    """Return where the sampled tokens went: delivered ones first, then the exclusion reasons, largest first."""
    tokens = summary.tokens
    reasons = sorted(tokens.excluded.items(), key=lambda item: -item[1])
    parts = [("delivered", tokens.delivered, True), *((reason.replace("_", " "), count, False) for reason, count in reasons)]
    return tuple(Share(name, count, _percent(count, tokens.sampled), delivered) for name, count, delivered in parts)


def number(value: float) -> str:
    """Return a reward with at most three decimals and no trailing zeros."""
    return f"{value:.3f}".rstrip("0").rstrip(".") or "0"


def _result(event: GroupOutcome) -> str:
    if isinstance(event, GroupMerged):
        return "merged" if event.purpose.value == "train" else "kept"
    return "failed" if event.dropped_by is None else "dropped"


def result_counts(summary: Summary) -> Sequence[tuple[str, str, str]]:
    """Return the figures at the top of the page, each as name, value and note."""
    groups, tokens, fidelity = summary.groups, summary.tokens, summary.fidelity
    delivered = _percent(tokens.delivered, tokens.sampled)
    mean = NO_NUMBER if summary.rewards.mean is None else number(summary.rewards.mean)
    flat = sum(len(known) > 1 and max(known) - min(known) < NO_SPREAD for known in _known(summary))
    stripped = f", {summary.thinking_stripped} begun by stripped reasoning" if summary.thinking_stripped else ""
    dropped = f", {groups.dropped} dropped" if groups.dropped else ""
    hidden = f", {summary.calls_without_tools} calls whose tools the policy never saw" if summary.calls_without_tools else ""
    return (
        (f"{groups.merged}", "groups", f"of {groups.submitted} submitted{dropped}"),
        (f"{summary.sessions.total}", "sessions", f"{summary.sessions.by_end.get('finished', 0)} finished"),
        (mean, "mean reward", f"{flat} group{'' if flat == 1 else 's'} without spread"),
        (f"{delivered:.0f} %", "tokens delivered", f"{tokens.delivered:,} of {tokens.sampled:,}"),
        (f"{summary.rows}", "rows", f"{fidelity.fed} fed, {fidelity.matched} matched{stripped}{hidden}"),
    )


def _known(summary: Summary) -> list[list[float]]:
    return [[reward for reward in rewards if reward is not None] for rewards in summary.rewards.per_group.values()]


def _bar(index: int, member: Member, low: float, high: float) -> Bar:
    why = "" if member.excluded is None else f", excluded: {member.excluded.value.replace('_', ' ')}"
    if member.reward is None:
        return Bar(index, 0.0, 0.0, negative=False, label=f"sample {index}: no reward{why}", value=NO_NUMBER, excluded=True)
    base = _percent(-low, high - low)
    top = _percent(member.reward - low, high - low)
    return Bar(
        index=index,
        bottom=min(base, top),
        height=abs(top - base),
        negative=member.reward < 0,
        label=f"sample {index}: {number(member.reward)}{why}",
        value=number(member.reward),
        excluded=member.excluded is not None,
    )


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
