"""One event of each type, with values as they occur: what the files in `golden` hold as bytes.

`python tests/unit/proto/golden_events.py` writes the file of an event that has none. It never changes one that is there: bytes
that were once written must be readable for ever.
"""

from pathlib import Path
from typing import Final

from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.blobs import BlobRef
from evener.proto.codec import encode, tag_of
from evener.proto.fleet import (
    DeadLetter,
    EngineDraining,
    EngineJoined,
    EngineLeft,
    Heartbeat,
    LetterReplayed,
    PartitionsAgreed,
    PolicyPublished,
    PolicyRetired,
    PolicyStaged,
    RunnerLeases,
    Running,
)
from evener.proto.reasons import CallFailure, ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import (
    Artifact,
    AttemptEnded,
    BridgedBy,
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    Choice,
    Event,
    Fidelity,
    FinishReason,
    HarnessExited,
    MaskRange,
    MatchedBy,
    MessagePrefix,
    Placement,
    RootReason,
    SegmentRef,
    SessionCancelled,
    SessionDispatched,
    SessionGivenUp,
    SessionSealed,
    SessionStarted,
)
from evener.proto.spec import (
    Budgets,
    GraderSpec,
    GroupOptions,
    HarnessSpec,
    Noise,
    PolicyOptions,
    Purpose,
    Quirks,
    Reasoning,
    Sampling,
    SessionSpec,
    SideCall,
    Streaming,
    Target,
    TaskRef,
    Thinking,
    Tolerance,
)
from evener.proto.state import DeletedTask, GroupState, ScoredMember, SessionState, Stage, TaskState
from evener.proto.tasks import TaskCancelled, TaskDeleted, TaskEnded, TaskOptions, TaskOutcome, TaskSubmitted
from evener.proto.trajectories import (
    Accounting,
    CallSummary,
    GroupFailed,
    GroupMerged,
    HarnessExit,
    Member,
    Row,
    RowKind,
    TrajectoryBuilt,
    TrajectoryScored,
)

FOLDER: Final = Path(__file__).parent / "golden"
NOW: Final = 1_790_000_000.25
DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
NAN: Final = float("nan")
BLOB: Final = BlobRef(digest=DIGEST, size=412_008)

SESSION: Final = "fix-the-letter.2"
CALL: Final = "c019f2c9a5d40a1b2c3d4e5f60"
EARLIER: Final = "c019f2c9a5000ffeeddccbbaa99"
REQUEST: Final = "r019f2c9a5d3f00112233445566"
START: Final = "s019f2c9a4e2099aabbccddeeff"

HARNESS: Final = HarnessSpec(name="script", options={"turns": "4"}, sandbox="local")
TASK: Final = TaskRef(name="fix-the-letter", digest=DIGEST, archive=BLOB)
SAMPLING: Final = Sampling(temperature=0.7, top_p=0.95, top_k=20, min_p=0.01, max_tokens=256, seed=7)
BUDGETS: Final = Budgets(agent_seconds=120.0, tokens=4096, calls=20, turns=12, repeats=5, attempts=2, deadline_seconds=3600.0)
OPTIONS: Final = PolicyOptions(thinking=Thinking.ALL, reasoning=Reasoning.AS_SENT)
MODELS: Final = {"*": Target(policy="policy"), "small": Target(frozen="helper-1"), "gpt-x": Target(refuse="not served here")}
QUIRKS: Final = Quirks(
    tolerances=(Tolerance.TEXT_TRIMMED, Tolerance.CALL_ID_LETTERS),
    noise=(Noise(where="system", pattern=r"Today is .*"),),
    side_calls=(SideCall(name="title", system="You title", tools=False),),
    retry_header="x-retry-count",
)
ARTIFACT: Final = Artifact(name="changes.tar", blob=BlobRef(digest=DIGEST, size=10_240))
RULES: Final = GroupOptions(deliver_early_at=3, min_usable=2, max_staleness=4, drop_zero_variance=True)
SPEC: Final = SessionSpec(
    run_id="demo",
    task_id="fix-the-letter",
    group_id="fix-the-letter",
    group_size=4,
    index=2,
    group=RULES,
    purpose=Purpose.TRAIN,
    task=TASK,
    harness=HARNESS,
    policy="policy",
    models=MODELS,
    sampling=SAMPLING,
    streaming=Streaming.LIVE,
    budgets=BUDGETS,
    grader=GraderSpec(name="harbor", options={"timeout": "60"}, tries=2),
)
SUBMITTED: Final = TaskSubmitted(
    task_id="fix-the-letter",
    task=TASK,
    options=TaskOptions(
        run_id="demo",
        samples=4,
        group=RULES,
        purpose=Purpose.EVAL,
        harness=HARNESS,
        models=MODELS,
        sampling=SAMPLING,
        budgets=BUDGETS,
        grader=GraderSpec(name="answer", options={"expected": "Paris"}),
    ),
    submitted_at=NOW,
)
CHOICE: Final = Choice(
    sampled_ids=pack_int32([9906, 1917, 2]),
    logprobs=pack_float32([-0.25, -1.5, NAN]),
    versions=pack_int32([3, 3, -1]),
    finish_reason=FinishReason.STOP,
    message=b'{"role":"assistant","content":"Hello world"}',
    masked=(MaskRange(start=2, end=3, reason=ExclusionReason.VERSION_UNKNOWN),),
)
PLACEMENT: Final = Placement(
    rule=1,
    parent=SegmentRef(call_id=EARLIER, choice=0),
    matched_by=MatchedBy.CALL_ID,
    bridged_by=BridgedBy.TWO_RENDERS,
    altered=True,
    siblings=2,
    reinstated_tokens=17,
)
ROW: Final = Row(
    ids=pack_int32([1, 50, 9906, 1917]),
    loss_mask=pack_uint8([0, 0, 1, 1]),
    logprobs=pack_float32([NAN, NAN, -0.25, -1.5]),
    versions=pack_int32([-1, -1, 3, 3]),
    call_of=pack_int32([-1, -1, 0, 0]),
    calls=(CALL,),
    prompt_length=2,
    kind=RowKind.MAIN,
    root=RootReason.FIRST,
    fidelity=Fidelity.FED,
    policy="policy",
    finish_reason=FinishReason.STOP,
    options=OPTIONS,
    sampling=SAMPLING,
)
ACCOUNTING: Final = Accounting(sampled=5, delivered=2, excluded={ExclusionReason.SIDE_CALL: 3}, lost_calls=1, side_calls=1, failed_calls=1)
TRAJECTORY: Final = TrajectoryBuilt(
    session_id=SESSION,
    attempt=1,
    spec=SPEC,
    termination_reason=TerminationReason.FINISHED,
    harness_version="1.0.0",
    exit=HarnessExit(cause=ExitCause.EXITED, exit_code=0, agent_seconds=3.5, wall_seconds=4.25, prepare_seconds=0.5, artifacts=(ARTIFACT,)),
    rows=(ROW,),
    versions=(3,),
    accounting=ACCOUNTING,
    calls=(
        CallSummary(
            call_id=CALL,
            attempt=1,
            root=RootReason.FIRST,
            prompt_tokens=2,
            sampled_tokens=2,
            opened_at=NOW,
            closed_at=NOW + 1,
            engine_seconds=0.75,
            queue_seconds=0.125,
        ),
        CallSummary(call_id=EARLIER, attempt=1, parent=CALL, failure=CallFailure.OVERLOADED, opened_at=NOW + 2),
    ),
    answer="Hello world",
    rule=1,
    rows_digest=DIGEST,
    inconsistencies=("call c1: record damaged",),
    records=BLOB,
    dispatched_at=NOW - 2,
    started_at=NOW - 1,
    sealed_at=NOW + 5,
)
SCORED: Final = TrajectoryScored(
    trajectory=TRAJECTORY,
    reward=0.5,
    rewards={"reward": 0.5, "tests_passed": 3.0},
    grader="harbor",
    evidence=(Artifact(name="verifier.log", blob=BLOB),),
    grading_seconds=1.25,
    tries=1,
    scored_at=NOW + 7,
)
MEMBERS: Final = (
    Member(session_id=SESSION, attempt=1, termination_reason=TerminationReason.FINISHED, reward=0.5, scored=SCORED),
    Member(
        session_id="fix-the-letter.3", attempt=0, termination_reason=TerminationReason.CANCELLED, excluded=ExclusionReason.UNTRAINABLE_END
    ),
)

EVENTS: Final[tuple[Event, ...]] = (
    SUBMITTED,
    TaskCancelled(task_id="fix-the-letter", reason="asked by the operator", cancelled_at=NOW),
    TaskEnded(task_id="fix-the-letter", outcome=TaskOutcome.FAILED, reason="harness not installed", ended_at=NOW),
    TaskDeleted(task_id="fix-the-letter", run_id="default", team="agents", deleted_at=NOW),
    SessionDispatched(session_id=SESSION, attempt=1, runner_id="local-sandbox_runner", dispatched_at=NOW, lease_seconds=10.0, spec=SPEC),
    SessionCancelled(session_id=SESSION, runner_id="local-sandbox_runner", reason="task cancelled"),
    SessionStarted(
        session_id=SESSION,
        attempt=1,
        start_id=START,
        runner_id="local-sandbox_runner",
        dispatched_at=NOW,
        started_at=NOW + 0.5,
        harness_version="1.0.0",
        quirks=QUIRKS,
        spec=SPEC,
    ),
    HarnessExited(
        session_id=SESSION,
        attempt=1,
        start_id=START,
        cause=ExitCause.EXITED,
        exit_code=-9,
        detail="killed",
        agent_seconds=3.5,
        wall_seconds=4.25,
        prepare_seconds=0.5,
        artifacts=(ARTIFACT,),
        exited_at=NOW,
        reward=1.0,
    ),
    SessionGivenUp(
        session_id=SESSION,
        attempt=2,
        termination_reason=TerminationReason.ATTEMPTS_USED_UP,
        detail="2 attempts",
        given_up_at=NOW,
        spec=SPEC,
    ),
    CallOpened(
        session_id=SESSION,
        attempt=1,
        start_id=START,
        call_id=CALL,
        request_id=REQUEST,
        try_number=2,
        retry_of=EARLIER,
        dialect="openai_chat",
        model="policy",
        policy="policy",
        engine_id="embedded",
        placement=PLACEMENT,
        prompt_delta_ids=pack_int32([1, 50, 128_000]),
        prompt_tokens=703,
        history_base=MessagePrefix(call_id=EARLIER, count=3, choice=0),
        messages=b'[{"role":"tool","content":"ok"}]',
        message_count=5,
        tools=b'[{"name":"write"}]',
        side_call="title",
        options=OPTIONS,
        sampling=SAMPLING,
        requested_params=b'{"temperature":0}',
        cuts=("Today is Monday",),
        streamed=True,
        n=2,
        body_digest=DIGEST,
        opened_at=NOW,
    ),
    CallClosed(
        session_id=SESSION,
        attempt=1,
        call_id=CALL,
        request_id=REQUEST,
        choices=(CHOICE,),
        fidelity=Fidelity.MATCHED,
        placement=PLACEMENT,
        prompt_delta_ids=BLOB,
        answer_id="chatcmpl-1",
        answer_created=1_790_000_000,
        cached_tokens=0,
        queue_seconds=0.125,
        first_token_seconds=0.25,
        engine_seconds=0.75,
        closed_at=NOW,
    ),
    CallFailed(
        session_id=SESSION,
        attempt=1,
        call_id=CALL,
        request_id=REQUEST,
        reason=CallFailure.ENGINE_UNREACHABLE,
        detail="refused",
        status=503,
        failed_at=NOW,
    ),
    CallUndelivered(session_id=SESSION, attempt=1, call_id=CALL, request_id=REQUEST, undelivered_at=NOW),
    CallDelivered(session_id=SESSION, attempt=1, call_id=CALL, request_id=REQUEST, delivered_at=NOW),
    AttemptEnded(
        session_id=SESSION, attempt=1, termination_reason=TerminationReason.INFRASTRUCTURE, detail="engine_unreachable", ended_at=NOW
    ),
    SessionSealed(
        session_id=SESSION,
        attempt=2,
        termination_reason=TerminationReason.AGENT_TIME,
        detail="120 s",
        rows_digest=DIGEST,
        calls=4,
        sampled_tokens=512,
        sealed_at=NOW,
    ),
    TRAJECTORY,
    SCORED,
    GroupMerged(
        group_id="fix-the-letter",
        task_id="fix-the-letter",
        run_id="demo",
        purpose=Purpose.TRAIN,
        policy="policy",
        size=2,
        members=MEMBERS,
        accounting=ACCOUNTING,
        merged_at=NOW,
    ),
    GroupFailed(
        group_id="fix-the-letter",
        task_id="fix-the-letter",
        run_id="demo",
        purpose=Purpose.TRAIN,
        policy="policy",
        size=2,
        reason="zero variance: all 2 usable rewards are 0.5",
        members=MEMBERS[1:],
        accounting=Accounting(),
        dropped_by="zero_variance",
        failed_at=NOW,
    ),
    PolicyStaged(policy="policy", version=4, location="s3://weights/4", digest=DIGEST, staged_at=NOW),
    PolicyPublished(policy="policy", version=4, location="s3://weights/4", digest=DIGEST, published_at=NOW),
    PolicyRetired(policy="policy", version=1, retired_at=NOW),
    Heartbeat(
        instance_id="local-sandbox_runner",
        service="sandbox_runner",
        address="http://127.0.0.1:8700",
        boot_id="b019f2c9a4e2012345678901234",
        capacity=8,
        partitions=(0, 3),
        stopping=True,
        at=NOW,
    ),
    RunnerLeases(runner_id="local-sandbox_runner", running=(Running(session_id=SESSION, attempt=1),), at=NOW),
    EngineJoined(engine_id="embedded", kind="embedded", url="http://127.0.0.1:8701", policy="policy", max_concurrency=4, joined_at=NOW),
    EngineDraining(engine_id="embedded", draining_at=NOW),
    EngineLeft(engine_id="embedded", left_at=NOW),
    DeletedTask(task_id="fix-the-letter", run_id="default", deleted_at=NOW, swept=True),
    TaskState(
        submitted=SUBMITTED,
        sessions=(
            SessionState(
                session_id=SESSION,
                stage=Stage.GIVEN_UP,
                attempt=2,
                runner_id="local-sandbox_runner",
                dispatched_at=NOW,
                first_dispatched_at=NOW - 60,
                termination_reason=TerminationReason.ATTEMPTS_USED_UP,
                detail="lease ran out",
            ),
        ),
        cancelled="asked by the operator",
        outcome=TaskOutcome.CANCELLED,
        reason="asked by the operator",
        ended_at=NOW,
    ),
    GroupState(
        group_id="fix-the-letter",
        task_id="fix-the-letter",
        run_id="demo",
        purpose=Purpose.TRAIN,
        policy="policy",
        size=4,
        options=RULES,
        scored=(
            ScoredMember(
                index=2,
                session=BlobRef(digest=DIGEST, size=10_240),
                excluded=ExclusionReason.UNGRADED,
                fails_group=True,
                reward=0.5,
                versions=(3, 4),
            ),
        ),
        seen=(2, 3),
        ended_at=NOW,
        offset=17,
    ),
    PartitionsAgreed(partitions=64, agreed_at=NOW),
    DeadLetter(
        service="evaluator",
        topic="trajectories.built",
        partition=1,
        offset=17,
        key=SESSION,
        reason="record of 3 bytes: truncated",
        value=b"\x81\xa4t",
        headers=(("evener-type", b"trajectory_built.v1"),),
        replay="evener replay trajectories.built 1 17",
        at=NOW,
    ),
    LetterReplayed(topic="trajectories.built", partition=1, offset=17, by="ann", at=NOW),
)


def file_of(event: Event) -> Path:
    """Return where the event's bytes stand."""
    return FOLDER / f"{tag_of(event)}.hex"


if __name__ == "__main__":
    for one in EVENTS:
        if not file_of(one).exists():
            file_of(one).write_text(encode(one).hex("\n", -32) + "\n")
