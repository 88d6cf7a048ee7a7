"""What a grading was of, exactly: the evidence with which anybody can repeat it."""

from typing import Final

import msgspec

from evener.proto.trajectories import TrajectoryBuilt

INPUTS: Final = "inputs.json"


def inputs_of(trajectory: TrajectoryBuilt) -> bytes:
    """Return the grader with its options, the task, the answer, and the digests of what the agent left, as JSON."""
    spec, left = trajectory.spec, trajectory.exit
    inputs = {
        "session_id": trajectory.session_id,
        "attempt": trajectory.attempt,
        "rows_digest": trajectory.rows_digest,
        "grader": spec.grader,
        "task": None if spec.task is None else {"name": spec.task.name, "digest": spec.task.digest},
        "sandbox": spec.harness.sandbox,
        "answer": trajectory.answer,
        "artifacts": {artifact.name: artifact.blob.digest for artifact in (() if left is None else left.artifacts)},
    }
    return msgspec.json.format(msgspec.json.encode(inputs))
