"""Group rules: what is excluded, and whether a group waits, is delivered, fails or is dropped."""

from typing import Any

import pytest
from tests.support.builders import decided, ended, group

from evener.proto.reasons import ExclusionReason
from evener.proto.spec import EXCLUSIONS, GroupOptions, Purpose
from evener.proto.state import GroupState, ScoredMember
from evener.proto.trajectories import GroupFailed, GroupMerged
from evener.trainer_bridge.rules import GROUP_RULES, MEMBER_RULES, Fate, OpenGroup, PolicyVersions, decision_for

VERSIONS = PolicyVersions(newest=5, unproven=frozenset({4}))


def member(index: int, reward: float | None = 1.0, **given: Any) -> ScoredMember:
    return ScoredMember(index=index, reward=reward, **given)


def fate(*members: ScoredMember, size: int = 4, **options: Any) -> tuple[Fate, str]:
    """Return what becomes of a group of which these members were scored, and by which rule."""
    decision = decision_for(state(*members, size=size, **options), VERSIONS)
    return decision.fate, decision.rule


def state(*members: ScoredMember, size: int = 4, **options: Any) -> GroupState:
    return GroupState(
        group_id="g",
        task_id="g",
        run_id="run",
        purpose=Purpose.TRAIN,
        policy="policy",
        size=size,
        options=GroupOptions(**{"min_usable": 2, **options}),
        scored=members,
        seen=tuple(one.index for one in members),
    )


FOUR = tuple(member(index, reward) for index, reward in enumerate((1.0, 0.0, 1.0, 0.5)))
EQUAL = tuple(member(index) for index in range(4))
UNUSABLE = member(3, None, excluded=ExclusionReason.UNGRADED)


@pytest.mark.parametrize(
    ("members", "options", "expected"),
    [
        (FOUR[:3], {}, (Fate.WAIT, "")),
        (FOUR, {}, (Fate.DELIVER, "complete")),
        (FOUR[:2], {"deliver_early_at": 2}, (Fate.DELIVER, "deliver_early_at")),
        ((FOUR[0], UNUSABLE), {"deliver_early_at": 2, "min_usable": 1}, (Fate.WAIT, "")),
        (FOUR[:2], {"deliver_early_at": 2, "min_usable": 3}, (Fate.WAIT, "min_usable")),
        ((*FOUR[:3], UNUSABLE), {"min_usable": 3}, (Fate.DELIVER, "complete")),
        ((*FOUR[:3], UNUSABLE), {"min_usable": 4}, (Fate.FAIL, "min_usable")),
        ((*FOUR[:3], member(3, fails_group=True)), {}, (Fate.FAIL, "no_start")),
        ((*FOUR[:2], member(3, fails_group=True)), {"deliver_early_at": 2}, (Fate.WAIT, "no_start")),
        (EQUAL, {}, (Fate.DELIVER, "complete")),
        (EQUAL, {"drop_zero_variance": True}, (Fate.DROP, "zero_variance")),
        (FOUR, {"drop_zero_variance": True}, (Fate.DELIVER, "complete")),
        ((*EQUAL[:3], UNUSABLE), {"drop_zero_variance": True}, (Fate.DROP, "zero_variance")),
        (EQUAL[:2], {"drop_zero_variance": True, "deliver_early_at": 2}, (Fate.WAIT, "zero_variance")),
        (FOUR[:2], {"drop_zero_variance": True, "deliver_early_at": 2}, (Fate.DELIVER, "deliver_early_at")),
        ((*EQUAL[:1], UNUSABLE, UNUSABLE, UNUSABLE), {"drop_zero_variance": True}, (Fate.FAIL, "min_usable")),
    ],
)
def test_rules_decide_in_their_order(members: tuple[ScoredMember, ...], options: dict[str, Any], expected: tuple[Fate, str]) -> None:
    """A group that cannot be used fails before it is dropped, and is delivered early only where a whole one would be."""
    assert fate(*members, **options) == expected


@pytest.mark.parametrize(
    ("versions", "max_staleness", "excluded"),
    [
        ((5,), 0, None),
        ((3, 5), 2, None),
        ((2, 5), 2, ExclusionReason.STALE),
        ((2, 5), None, None),
        ((), 0, None),
        ((4,), None, ExclusionReason.VERSION_UNKNOWN),
        ((1, 4), 2, ExclusionReason.VERSION_UNKNOWN),
    ],
)
def test_member_is_excluded_for_the_oldest_and_for_unproven_versions(
    versions: tuple[int, ...], max_staleness: int | None, excluded: ExclusionReason | None
) -> None:
    """Version 5 is the newest, version 4 was rolled back."""
    decision = decision_for(state(member(0, versions=versions), max_staleness=max_staleness), VERSIONS)
    assert decision.excluded.get(0) is excluded


def test_what_excluded_a_member_first_is_its_reason() -> None:
    """An ungraded session stays ungraded, whatever the versions of its tokens."""
    old = member(0, None, excluded=ExclusionReason.UNGRADED, versions=(1,))
    assert decision_for(state(old, max_staleness=0), VERSIONS).excluded == {0: ExclusionReason.UNGRADED}


def test_staleness_is_heeded_by_every_other_rule() -> None:
    """A stale member is usable neither for an early delivery nor for the variance."""
    stale = member(0, 0.0, versions=(1,))
    assert fate(stale, member(1), deliver_early_at=2, max_staleness=1) == (Fate.WAIT, "min_usable")
    assert fate(stale, *EQUAL[1:], max_staleness=1, drop_zero_variance=True) == (Fate.DROP, "zero_variance")


def test_group_without_variance_is_dropped_with_its_rewards_reason_and_tokens() -> None:
    """The drop is not silent: the record names the rule, the rewards, and every token."""
    dropped = ended(group((0.5, 0.5, None, 0.5), drop_zero_variance=True))

    assert isinstance(dropped, GroupFailed)
    assert (dropped.dropped_by, dropped.reason) == (
        "zero_variance",
        "zero variance: all 3 usable rewards are 0.5: 1 ungraded (the grader gave no reward)",
    )
    assert [one.reward for one in dropped.members] == [0.5, 0.5, None, 0.5]
    assert dropped.accounting.delivered == 0
    assert dropped.accounting.excluded == {ExclusionReason.GROUP_DROPPED: 30, ExclusionReason.UNGRADED: 10}


def test_early_delivery_waits_for_a_reward_that_differs() -> None:
    sessions = group((1.0, 1.0, 0.0, 1.0), drop_zero_variance=True, deliver_early_at=2)
    assert decided(sessions[:2]) is None
    assert isinstance(ended(sessions[:3]), GroupMerged)


def test_each_option_of_a_run_is_the_business_of_a_rule() -> None:
    """An option that no rule reads would be accepted and do nothing."""

    class Asked(GroupOptions, frozen=True):
        def __getattribute__(self, name: str) -> Any:
            seen.add(name)
            return super().__getattribute__(name)

    seen = set[str]()
    for rule in MEMBER_RULES.values():
        rule(member(0, versions=(1,)), Asked(max_staleness=1), VERSIONS)
    for group_rule in GROUP_RULES.values():
        group_rule(OpenGroup(options=Asked(min_usable=2), size=4, scored=EQUAL, usable=EQUAL))
    assert set(GroupOptions.__struct_fields__) <= seen


def test_each_option_of_a_run_says_what_it_excludes() -> None:
    """The audit reports what no option explains: a rule whose exclusion is listed nowhere would look like a loss."""
    by_version = {ExclusionReason.VERSION_UNKNOWN}  # asked in every run
    assert list(EXCLUSIONS) == list(GroupOptions.__struct_fields__)
    assert set(MEMBER_RULES) - by_version <= set(EXCLUSIONS.values())
