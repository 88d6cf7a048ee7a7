"""The world of one session over the pure core: what its harness sends, its gateway places and commits, and its engine samples.

There is no network and no clock. `OwnedSession` holds the steps of the gateway, for any renderer and any harness; `World` adds a harness
and an engine that speak in bytes (`toy.py`).
"""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from tests.support.builders import alone, call_closed, call_failed, call_opened, choice, exited, of_call, sealed, started
from tests.support.toy import END, ToyRenderer, sample

from evener.proto.arrays import pack_int32
from evener.proto.codec import AnyEvent, decode, encode
from evener.proto.reasons import CallFailure
from evener.proto.sessions import CallClosed, CallDelivered, CallOpened, CallUndelivered, Fidelity, FinishReason
from evener.proto.spec import PolicyOptions, Quirks, SessionSpec
from evener.proto.trajectories import TrajectoryBuilt
from evener.tokens.attempt_end import attempt_end
from evener.tokens.conversation import given_messages
from evener.tokens.digests import Digest, Message, said
from evener.tokens.forest import Ids
from evener.tokens.history import History
from evener.tokens.inconsistencies import fingerprints
from evener.tokens.place import Placed, Renders, place, settle
from evener.tokens.rows import ROW_RULE, cut, digest
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

RECORD_AT = 100.0
"""When the log took each record."""


class OwnedSession:
    """A session as the gateway that owns it holds it: its log, folded."""

    renderer: Renders

    def __init__(self, renderer: Renders, session_id: str, spec: SessionSpec, quirks: Quirks | None = None) -> None:
        self.renderer = renderer
        self.spec = spec
        self.quirks = quirks or Quirks()
        self.session = SessionLog(session_id)
        self.history: History
        self.events: list[AnyEvent] = []
        self.calls = 0
        self.step = 0
        """The number of the task's step that runs. 0: the task has no steps."""
        self.start(1)

    @property
    def log(self) -> list[bytes]:
        """The records of the session."""
        return [encode(event) for event in self.events]

    def write(self, event: AnyEvent) -> None:
        """Append to the log and fold, as the gateway does after a commit."""
        self.events.append(event)
        self.session.apply(event, offset=len(self.events), record_at=RECORD_AT)
        if isinstance(event, CallOpened | CallClosed) and (known := self.session.forest.calls.get(event.call_id)) is not None:
            self.history.add(known)

    def start(self, attempt: int) -> None:
        times = {"dispatched_at": 99.0, "started_at": 100.0}
        start_id = f"s{attempt}"
        self.write(started(self.session.session_id, self.spec, attempt=attempt, start_id=start_id, quirks=self.quirks, **times))
        self.history = History(self.session.forest, self.quirks, attempt)

    def place(
        self, messages: Sequence[Message], tools: Sequence[Message], *, digests: Sequence[Digest] | None = None, sub_agent: bool = False
    ) -> Placed:
        """Return where a request hangs."""
        return place(
            self.session.forest,
            self.history,
            messages,
            tools,
            renderer=self.renderer,
            options=PolicyOptions(),
            quirks=self.quirks,
            digests=digests,
            sub_agent=sub_agent,
            step=self.step,
        )

    def opening(self, placed: Placed, messages: Sequence[Message], tools: Sequence[Message], **given: Any) -> CallOpened:
        """Return the opening of the next call, which is not written yet."""
        self.calls += 1
        told: dict[str, Any] = {
            "attempt": self.session.attempt,
            "start_id": f"s{self.session.attempt}",
            "number": self.calls,
            "step": self.step,
        }
        return call_opened(self.session.session_id, placed, messages, tools, **told | given)

    def seal(self, exit_code: int = 0, **of_exit: Any) -> TrajectoryBuilt:
        """End the session at its harness's exit, as its owner does; return its trajectory."""
        session, attempt = self.session, self.session.attempt
        self.write(exited(session.session_id, attempt=attempt, at=200.0, start_id=f"s{attempt}", exit_code=exit_code, **of_exit))
        found = attempt_end(session, None)
        assert found is not None
        reason, detail = found
        self.write(
            sealed(
                session.session_id,
                reason,
                attempt=attempt,
                detail=detail,
                rows_digest=digest(cut(session, reason).rows),
                calls=sum(call.closed is not None for call in session.forest.calls.values()),
                sampled_tokens=session.sampled_tokens(),
                rule=ROW_RULE,
                fingerprints=b"".join(fingerprints(session.forest, attempt, reason).values()),
                spec=self.spec,
                at=201.0,
            )
        )
        return build(session)


class World(OwnedSession):
    """A session, a harness that says what a test lets it say, and an engine that keeps a ledger."""

    renderer: ToyRenderer

    def __init__(self, seed: int = 0, quirks: Quirks | None = None, **of_spec: Any) -> None:
        super().__init__(ToyRenderer(), "t.0", alone(**of_spec), quirks)
        self.random = random.Random(seed)  # noqa: S311 - a seeded test
        self.ledger: list[dict[str, Any]] = []
        self.odd_glue = False
        """An engine closed a turn in a way of its own, so that no render of ours is equal any more."""
        self.changed = True
        """What the harness sent may differ from what is fed, within its tolerances or by noise."""
        self.asked: dict[str, tuple[list[Message], Sequence[Message]]] = {}
        """The messages of each call as they were sent, and its tools, by call."""

    def open(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        retry_of: str | None = None,
        *,
        sub_agent: bool = False,
        marks: tuple[str, ...] = (),
    ) -> tuple[Placed, CallOpened]:
        """Place a request."""
        placed = self.place(messages, tools, sub_agent=sub_agent)
        opened = self.opening(placed, messages, tools, retry_of=retry_of, sub_agent=sub_agent, marks=marks)
        self.asked[opened.call_id] = [said(message) for message in messages], tools
        return placed, opened

    def close(
        self,
        placed: Placed,
        opened: CallOpened,
        texts: Sequence[str],
        finish: FinishReason = FinishReason.STOP,
        *,
        reported: Ids | None = None,
    ) -> list[Message]:
        """Sample and close a call; return the answers. `reported`: what an engine conditioned on that rendered the prompt itself."""
        final = placed if reported is None else settle(self.session.forest, placed, reported)
        choices, answers = [], []
        for index, text in enumerate(texts):
            ids = [*sample(text, self.random), *([END] if finish is FinishReason.STOP else [])]
            logprobs = [-self.random.random() for _ in ids]
            entry = {"request_id": f"{opened.call_id}-{index}", "fed_ids": final.context.tolist(), "sampled_ids": ids}
            self.ledger.append(entry | {"logprobs": np.array(logprobs, np.float32).tolist(), "versions": ["step-3"] * len(ids)})
            answers.append(self.renderer.parse(np.array(ids, np.int32), call_id=opened.call_id, choice=index))
            choices.append(choice(ids, answers[-1], finish, logprobs=logprobs, version=3))
        self.begin(placed, opened)
        settled: dict[str, Any] = {
            "placement": final.placement,
            "prompt_delta_ids": pack_int32(final.prompt_delta_ids),
            "prompt_tokens": len(final.context),
        }
        fidelity = Fidelity.FED if reported is None else Fidelity.MATCHED
        self.write(call_closed(opened, choices, fidelity=fidelity, **({} if final is placed else settled)))
        return answers

    def begin(self, placed: Placed, opened: CallOpened) -> None:
        """Write a call's opening, unless it was written before (`live`)."""
        if opened.call_id not in self.session.forest.calls:
            self.write(opened)
            if not self.odd_glue:
                self.compare_with_a_render(opened.call_id, placed)

    def compare_with_a_render(self, call_id: str, placed: Placed) -> None:
        """What is fed spells the same turns as a full render of what was said; how its texts are cut into tokens is the model's own."""
        sent, tools = self.asked[call_id]
        messages = given_messages(self.session.forest, self.session.forest.calls[call_id])
        assert self.changed or messages == sent, call_id
        rendered = self.renderer.render(messages, tools or None)
        assert self.renderer.spelled(placed.context) == self.renderer.spelled(rendered), call_id

    def ask(
        self, messages: Sequence[Message], *texts: str, tools: Sequence[Message] = (), finish: FinishReason = FinishReason.STOP
    ) -> Message:
        """One whole call; return its first answer."""
        placed, opened = self.open(messages, tools)
        return self.close(placed, opened, texts, finish)[0]

    def fail(self, opened: CallOpened, reason: CallFailure, detail: str = "", *, sampled_tokens: int = 0) -> None:
        if opened.call_id not in self.session.forest.calls:
            self.write(opened)
        self.write(call_failed(opened, reason, detail=detail, sampled_tokens=sampled_tokens))

    def undeliver(self, call_id: str, request_id: str | None = None) -> None:
        """The harness leaves before it has a call's answer; `request_id`: that of a transport retry."""
        opened = self.session.forest.calls[call_id].opened
        self.write(CallUndelivered(**of_call(opened, request_id), undelivered_at=1.0))

    def deliver(self, call_id: str, request_id: str) -> None:
        """A transport retry gets a call's answer."""
        opened = self.session.forest.calls[call_id].opened
        self.write(CallDelivered(**of_call(opened, request_id), delivered_at=1.0))

    def ledger_lines(self) -> list[str]:
        return [json.dumps(entry) for entry in self.ledger]


def folded(log: Sequence[bytes], session_id: str = "t.0", *, times: int = 1) -> SessionLog:
    """Return a session as a reader of its log has it that read each record so many times."""
    session = SessionLog(session_id)
    for offset, data in enumerate(log, start=1):
        for _ in range(times):
            session.apply(decode(data), offset=offset, record_at=RECORD_AT)
    return session


def replay(log: Sequence[bytes]) -> TrajectoryBuilt:
    """Build a session from its log alone, as the reconstructor does."""
    return build(folded(log))


def plain(trajectory: TrajectoryBuilt) -> dict[str, Any]:
    """The trajectory as the checker reads it."""
    return msgspec.msgpack.decode(encode(trajectory), type=dict[str, Any])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(call: Message, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": text}
