"""What a grader that is not ours gets to know of a session: plain values, the same for a function, a script and a server."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.graders.port import Grade, GraderError, graded, of_calls
from evener.proto.trajectories import TrajectoryBuilt


class GraderAnswer(Struct, frozen=True, kw_only=True):
    """What such a grader answers as an object. Other fields are ignored."""

    reward: float | None = None
    rewards: dict[str, float] = {}
    call_rewards: dict[str, float] = {}


_answered: Final = msgspec.json.Decoder(GraderAnswer)


def facts(trajectory: TrajectoryBuilt) -> dict[str, Any]:
    """Return a session as JSON values."""
    spec = trajectory.spec
    return {
        "session_id": trajectory.session_id,
        "task": None if spec.task is None else spec.task.name,
        "answer": trajectory.answer,
        "termination_reason": trajectory.termination_reason.value,
        "harness": spec.harness.name,
        "calls": [
            {"call_id": call.call_id, "parent": call.parent, "side_call": call.side_call, "sampled_tokens": call.sampled_tokens}
            for call in trajectory.calls
        ],
    }


def grade_of(trajectory: TrajectoryBuilt, answer: bytes) -> Grade:
    """Return the grade in the JSON of an answer: a number, or an object as `GraderAnswer` says. Raises GraderError."""
    try:
        told = _answered.decode(answer if answer.lstrip()[:1] == b"{" else b'{"reward":' + answer + b"}")
    except msgspec.DecodeError as cause:
        msg = f"not a reward: {cause}: {answer[:200].decode(errors='replace')!r}"
        raise GraderError(msg) from cause
    rewards = told.rewards if told.reward is None else told.rewards | {"reward": told.reward}
    return graded(rewards, of_calls(trajectory, told.call_rewards))
