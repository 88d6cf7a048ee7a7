"""Group rules: which members are excluded from a group, and whether the group waits, is delivered or is dropped. Pure.

A run chooses among the rules by its `GroupOptions`. A new rule is a field in `GroupOptions` and a line in `EXCLUSIONS`
(`evener.proto.spec`), and a function here, in `MEMBER_RULES` or `GROUP_RULES`. `EXCLUSIONS` names the reason for which the rule may exclude
sessions; a new reason is a member of `ExclusionReason` (`evener.proto.reasons`). The HTTP API, the Python client, the audit and
`evener run --group.FIELD` pick all this up automatically.
"""

from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from evener.proto.reasons import ExclusionReason
from evener.proto.spec import GroupOptions
from evener.proto.state import GroupState, ScoredMember


class Fate(StrEnum):
    """What a group rule decides about a group."""

    WAIT = "wait"
    DELIVER = "deliver"
    FAIL = "fail"
    """Too few of its sessions can be used."""
    DROP = "drop"
    """Its sessions could be used, but its run does not want the group."""


class GroupDecision(Struct, frozen=True, kw_only=True):
    """The result of all rules for a group."""

    fate: Fate
    reason: str = ""
    """Why the group fails or is dropped, for people."""
    rule: str = ""
    """The name of the group rule that decided. Empty: none did."""
    excluded: dict[int, ExclusionReason] = {}
    """The scored members that are excluded, by index."""


WAIT: Final = GroupDecision(fate=Fate.WAIT)
DELIVER: Final = GroupDecision(fate=Fate.DELIVER)


class PolicyVersions(Struct, frozen=True):
    """The versions of a group's policy, as they are known now."""

    newest: int | None = None
    """The newest published version. None: no version was published."""
    unproven: frozenset[int] = frozenset()
    """The versions that were rolled back, or that no engine has proven yet."""


class OpenGroup(Struct, frozen=True, kw_only=True):
    """A group that has not ended, as a group rule sees it."""

    options: GroupOptions
    size: int
    """N: the number of sessions that the group will have."""
    scored: tuple[ScoredMember, ...]
    """The members that were scored so far, in the order of their arrival."""
    usable: tuple[ScoredMember, ...]
    """The scored members that no member rule excludes."""

    @property
    def complete(self) -> bool:
        """Return whether all N members were scored."""
        return len(self.scored) >= self.size


class MemberRule(Protocol):
    """Decides whether one member is excluded from its group for the policy versions of its tokens."""

    def __call__(self, member: ScoredMember, options: GroupOptions, versions: PolicyVersions, /) -> bool: ...


class GroupRule(Protocol):
    """Decides what happens to a group. None: this rule does not apply, and the next rule is asked."""

    def __call__(self, group: OpenGroup, /) -> GroupDecision | None: ...


def unproven(member: ScoredMember, _: GroupOptions, versions: PolicyVersions) -> bool:
    """Exclude a member with tokens of a version that was rolled back, or that no engine has proven."""
    return not versions.unproven.isdisjoint(member.versions)


def stale(member: ScoredMember, options: GroupOptions, versions: PolicyVersions) -> bool:
    """Exclude a member with a token that is more than `max_staleness` versions older than the newest version."""
    if options.max_staleness is None or versions.newest is None or not member.versions:
        return False
    return min(member.versions) < versions.newest - options.max_staleness


def no_start(group: OpenGroup) -> GroupDecision | None:
    """Fail a group with a session that could not start: another group of the task would fail in the same way."""
    if not any(member.fails_group for member in group.scored):
        return None
    return _failed(group) if group.complete else WAIT


def min_usable(group: OpenGroup) -> GroupDecision | None:
    """Fail a complete group that has fewer than `min_usable` usable members."""
    if len(group.usable) >= (group.options.min_usable or 1):
        return None
    return _failed(group) if group.complete else WAIT


def zero_variance(group: OpenGroup) -> GroupDecision | None:
    """Drop a complete group whose usable members all have the same reward: its advantages are all 0.

    With an early delivery, the group waits for a different reward first.
    """
    rewards = {member.reward for member in group.usable}
    if not group.options.drop_zero_variance or len(rewards) > 1:
        return None
    if not group.complete:
        return WAIT
    return GroupDecision(fate=Fate.DROP, reason=f"zero variance: all {len(group.usable)} usable rewards are {rewards.pop()}")


def deliver_early(group: OpenGroup) -> GroupDecision | None:
    """Deliver a group as soon as `deliver_early_at` of its members are usable."""
    enough = group.options.deliver_early_at
    return DELIVER if enough is not None and len(group.usable) >= enough else None


def complete(group: OpenGroup) -> GroupDecision | None:
    """Deliver a group whose N members were all scored."""
    return DELIVER if group.complete else None


MEMBER_RULES: Final[dict[ExclusionReason, MemberRule]] = {
    ExclusionReason.VERSION_UNKNOWN: unproven,
    ExclusionReason.STALE: stale,
}
"""The member rules, in the order in which they are asked. The first rule that holds gives the reason."""

GROUP_RULES: Final[dict[str, GroupRule]] = {
    "no_start": no_start,
    "min_usable": min_usable,
    "zero_variance": zero_variance,
    "deliver_early_at": deliver_early,
    "complete": complete,
}
"""The group rules, in the order in which they are asked. The first rule that decides is followed. A group without a decision waits."""


def decision_for(state: GroupState, versions: PolicyVersions) -> GroupDecision:
    """Return the decision of the rules for a group that has not ended."""
    excluded = {member.index: reason for member in state.scored if (reason := _excluded(member, state.options, versions)) is not None}
    usable = tuple(member for member in state.scored if member.index not in excluded)
    group = OpenGroup(options=state.options, size=state.size, scored=state.scored, usable=usable)
    decided = ((name, decision) for name, rule in GROUP_RULES.items() if (decision := rule(group)) is not None)
    name, decision = next(decided, ("", WAIT))
    return replace(decision, rule=name, excluded=excluded)


def _excluded(member: ScoredMember, options: GroupOptions, versions: PolicyVersions) -> ExclusionReason | None:
    if member.excluded is not None:
        return member.excluded
    return next((reason for reason, rule in MEMBER_RULES.items() if rule(member, options, versions)), None)


def _failed(group: OpenGroup) -> GroupDecision:
    reason = f"{len(group.usable)} of {group.size} sessions usable, {group.options.min_usable or 1} needed"
    return GroupDecision(fate=Fate.FAIL, reason=reason)
