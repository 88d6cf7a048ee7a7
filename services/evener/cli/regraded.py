"""What `evener regrade` printed, as the rewards of an export."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from evener.cli.errors import Usage
from evener.proto.reasons import ExclusionReason
from evener.proto.trajectories import Flag, GroupMerged, GroupOutcome, Member


class Regraded(Struct, frozen=True, kw_only=True):
    """A session's old and new score. Keys stay; more may be added."""

    session_id: str
    before: float | None
    """The recorded reward. None: there is none, or no service knows it any more."""
    reward: float | None
    rewards: dict[str, float] = {}
    call_rewards: dict[str, float] = {}
    ungraded: str | None = None
    grader: str
    flags: tuple[Flag, ...] | None = None
    """The signs of reward hacking that count now. None: an older version printed this."""


_lines: Final = msgspec.json.Decoder(Regraded)


def read_regraded(file: Path) -> dict[str, Regraded]:
    """Return the scores in a file by session; a later line replaces an earlier one. Raises Usage. Blocks."""
    try:
        scores = [_lines.decode(line) for line in file.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.DecodeError) as cause:
        msg = f"--rewards {file}: not what `evener regrade` prints: {getattr(cause, 'strerror', None) or cause}"
        raise Usage(msg) from cause
    return {score.session_id: score for score in scores}


def with_regraded(groups: Sequence[GroupOutcome], scores: Mapping[str, Regraded]) -> list[GroupOutcome]:
    """Return groups with the rewards of a regrade. Delivered sessions that have no reward in it are excluded as ungraded."""
    return [
        structs.replace(group, members=tuple(_regraded(member, scores) for member in group.members))
        if isinstance(group, GroupMerged)
        else group
        for group in groups
    ]


def _regraded(member: Member, scores: Mapping[str, Regraded]) -> Member:
    score = scores.get(member.session_id)
    if score is None or member.scored is None:
        return member
    if score.reward is None:
        return structs.replace(member, reward=None, excluded=member.excluded or ExclusionReason.UNGRADED)
    fields = {"reward": score.reward, "rewards": score.rewards, "call_rewards": score.call_rewards, "grader": score.grader}
    flags = member.scored.flags if score.flags is None else score.flags
    return structs.replace(member, reward=score.reward, scored=structs.replace(member.scored, **fields, flags=flags))
