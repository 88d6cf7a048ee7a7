"""A whole small world for token tests: a renderer whose ids drift under re-tokenising, an engine with a ledger, a gateway's steps.

The renderer has two spellings for some texts (bytes, or pairs), so that anything that re-tokenises a sampled answer is found out.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from tests.support.builders import alone, exited, started

from evener.proto.arrays import pack_float32, pack_int32
from evener.proto.codec import AnyEvent, decode, encode
from evener.proto.ids import tool_call_id
from evener.proto.reasons import CallFailure
from evener.proto.sessions import (
    BridgedBy,
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    Choice,
    Failures,
    Fidelity,
    FinishReason,
    SessionSealed,
)
from evener.proto.spec import Budgets, PolicyOptions, Quirks, Sampling
from evener.proto.trajectories import TrajectoryBuilt
from evener.templates.port import Bridge, Message
from evener.tokens.conversation import given_messages
from evener.tokens.digests import said
from evener.tokens.history import History
from evener.tokens.inconsistencies import fingerprints
from evener.tokens.place import Placed, place, settle
from evener.tokens.rows import RULE, cut, digest
from evener.tokens.session import SessionLog, attempt_end
from evener.tokens.trajectory import build

START, END = 256, 257
THOUGHT = "</think>"
PAIRS = [b"th", b"he", b"in", b"er", b"an", b"re", b'":', b'{"', b"  "]
PAIR_BASE = 300
Ids = np.typing.NDArray[np.int32]


class ToyRenderer:
    """Bytes, some pairs of bytes, and two special tokens. Append-only, so every bridge holds."""

    stop_ids = (END,)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Greedy pairs; the canonical spelling."""
        del special
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            pair = data[at : at + 2]
            if pair in PAIRS:
                ids.append(PAIR_BASE + PAIRS.index(pair))
                at += 2
            else:
                ids.append(data[at])
                at += 1
        return ids

    def turn(self, message: Message) -> list[int]:
        """One message, closed."""
        text = json.dumps({key: value for key, value in message.items() if key != "role"}, sort_keys=True)
        if message["role"] == "assistant":
            text = spell(message)
        return [START, *self.encode(f"{message['role']}\n{text}"), END, 10]

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> Ids:
        head = [START, *self.encode(json.dumps(tools)), END] if tools else []
        return np.array([*head, *(i for m in messages for i in self.turn(m)), *self.prompt()], np.int32)

    def prompt(self) -> list[int]:
        return [START, *self.encode("assistant\n")]

    def bridge(
        self, before: Sequence[Message], answer: Message, new: Sequence[Message], tools: Sequence[Message] | None, *, closed: bool
    ) -> Bridge | None:
        del before, answer, tools
        ids = [*([] if closed else [END]), 10, *(i for m in new for i in self.turn(m)), *self.prompt()]
        return Bridge(np.array(ids, np.int32), BridgedBy.RENDERER)

    def reasoning_length(self, ids: Ids) -> int:
        """Up to and with the mark, which is no token of its own here: the shortest beginning that holds it."""
        sampled = ids.tolist()
        return next((size for size in range(len(sampled) + 1) if THOUGHT.encode() in b"".join(self.pieces(sampled[:size]))), 0)

    def spelled(self, ids: Ids) -> list[bytes]:
        """The texts between special tokens."""
        marked = [b"\0" if i in {START, END} else self.pieces([i])[0] for i in ids.tolist()]
        return b"".join(marked).split(b"\0")

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return [b"" if i in {START, END} else PAIRS[i - PAIR_BASE] if i >= PAIR_BASE else bytes([i]) for i in ids]

    def parse(self, ids: Ids, *, call_id: str, choice: int) -> Message:
        text = b"".join(self.pieces([int(i) for i in ids])).decode(errors="replace")
        thought, mark, rest = text.partition(THOUGHT)
        reasoning = {"reasoning": thought} if mark and thought else {}
        text = rest if reasoning else text
        before, mark, call = text.partition("<call>")
        try:
            arguments = json.loads(call) if mark else None
        except ValueError:
            arguments = None
        if arguments is None:
            return {"role": "assistant", "content": text, **reasoning}
        calls = [{"id": tool_call_id(call_id, choice, 0), "name": "run", "arguments": arguments}]
        return {"role": "assistant", "content": before, "tool_calls": calls, **reasoning}


def spell(message: Message) -> str:
    """The text that a model would have written for this message."""
    text = (message["reasoning"] + THOUGHT if "reasoning" in message else "") + str(message.get("content") or "")
    for call in message.get("tool_calls") or ():
        text += "<call>" + json.dumps(call["arguments"])
    return text


class World:
    """One session, its gateway's steps without network or clock, and the engine's ledger."""

    def __init__(self, seed: int = 0, quirks: Quirks | None = None, budgets: Budgets | None = None, **of_spec: Any) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seeded test
        self.renderer = ToyRenderer()
        self.session = SessionLog("t.0")
        self.history: History
        self.log: list[bytes] = []
        self.ledger: list[dict[str, Any]] = []
        self.spec = alone(budgets=budgets or Budgets(), **of_spec)
        self.quirks = quirks or Quirks()
        self.calls = 0
        self.odd_glue = False
        """An engine closed a turn in a way of its own, so that no render of ours is equal any more."""
        self.changed = True
        """What the harness sent may differ from what is fed, within its tolerances or by noise."""
        self.asked: dict[str, tuple[list[Message], Sequence[Message]]] = {}
        """The messages of each call as they were sent, and its tools, by call."""
        self.start(1)

    def write(self, event: AnyEvent) -> None:
        """Append to the log and fold, as the gateway does after a commit."""
        self.log.append(encode(event))
        self.session.apply(event, offset=len(self.log), record_at=100.0)
        if isinstance(event, CallOpened | CallClosed) and (call := self.session.forest.calls.get(event.call_id)) is not None:
            self.history.add(call)

    def start(self, attempt: int) -> None:
        self.write(
            started("t.0", self.spec, attempt=attempt, start_id=f"s{attempt}", dispatched_at=99.0, started_at=100.0, quirks=self.quirks)
        )
        self.history = History(self.session.forest, self.quirks, attempt)

    def open(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), retry_of: str | None = None, *, sub_agent: bool = False
    ) -> tuple[Placed, CallOpened]:
        """Place a request as the gateway would."""
        placed = place(
            self.session.forest,
            self.history,
            messages,
            tools,
            renderer=self.renderer,
            options=PolicyOptions(),
            quirks=self.quirks,
            sub_agent=sub_agent,
        )
        self.calls += 1
        self.asked[f"c{self.calls}"] = [said(message) for message in messages], tools
        opened = CallOpened(
            session_id="t.0",
            attempt=self.session.attempt,
            start_id=f"s{self.session.attempt}",
            call_id=f"c{self.calls}",
            request_id=f"r{self.calls}",
            retry_of=retry_of,
            dialect="openai_chat",
            model="m",
            policy="policy",
            engine_id="e",
            placement=placed.placement,
            prompt_delta_ids=pack_int32(placed.prompt_delta_ids),
            prompt_tokens=len(placed.context),
            history_base=placed.history_base,
            messages=msgspec.json.encode(placed.messages),
            message_count=len(messages),
            tools=msgspec.json.encode(tools) if tools and placed.history_base is None else None,
            tool_count=len(tools),
            side_call=placed.side_call,
            sub_agent=sub_agent,
            cuts=placed.cuts,
            sampling=Sampling(),
            body_digest=hashlib.sha256(json.dumps([messages, tools], sort_keys=True, default=str).encode()).hexdigest(),
            opened_at=float(self.calls),
        )
        return placed, opened

    def sample(self, text: str) -> list[int]:
        """Spell a text in ids as a model at a high temperature would: not canonically."""
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            pair = data[at : at + 2]
            if pair in PAIRS and self.random.random() < 0.5:
                ids.append(PAIR_BASE + PAIRS.index(pair))
                at += 2
            else:
                ids.append(data[at])
                at += 1
        return ids

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
            ids = [*self.sample(text), *([END] if finish is FinishReason.STOP else [])]
            logprobs = [-self.random.random() for _ in ids]
            entry = {"request_id": f"{opened.call_id}-{index}", "fed_ids": final.context.tolist(), "sampled_ids": ids}
            self.ledger.append(entry | {"logprobs": np.array(logprobs, np.float32).tolist(), "versions": ["step-3"] * len(ids)})
            answers.append(self.renderer.parse(np.array(ids, np.int32), call_id=opened.call_id, choice=index))
            choices.append(
                Choice(
                    sampled_ids=pack_int32(ids),
                    logprobs=pack_float32(logprobs),
                    versions=pack_int32([3] * len(ids)),
                    finish_reason=finish,
                    message=msgspec.json.encode(answers[-1]),
                )
            )
        self.begin(placed, opened)
        self.write(
            CallClosed(
                session_id="t.0",
                attempt=opened.attempt,
                call_id=opened.call_id,
                request_id=opened.request_id,
                choices=tuple(choices),
                fidelity=Fidelity.FED if reported is None else Fidelity.MATCHED,
                placement=None if final is placed else final.placement,
                prompt_delta_ids=None if final is placed else pack_int32(final.prompt_delta_ids),
                prompt_tokens=None if final is placed else len(final.context),
                answer_id=f"a{opened.call_id}",
                answer_created=1,
                closed_at=float(self.calls) + 0.5,
            )
        )
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
        self.write(
            CallFailed(
                session_id="t.0",
                attempt=opened.attempt,
                call_id=opened.call_id,
                request_id=opened.request_id,
                reason=reason,
                detail=detail,
                status=503,
                failed_at=float(self.calls) + 0.5,
                sampled_tokens=sampled_tokens,
            )
        )

    def undeliver(self, call_id: str) -> None:
        opened = self.session.forest.calls[call_id].opened
        self.write(
            CallUndelivered(session_id="t.0", attempt=opened.attempt, call_id=call_id, request_id=opened.request_id, undelivered_at=1.0)
        )

    def deliver(self, call_id: str, request_id: str) -> None:
        """A transport retry gets a call's answer."""
        attempt = self.session.forest.calls[call_id].opened.attempt
        self.write(CallDelivered(session_id="t.0", attempt=attempt, call_id=call_id, request_id=request_id, delivered_at=1.0))

    def seal(self, exit_code: int = 0, *, unanswered: CallFailure | None = None, failures: tuple[Failures, ...] = ()) -> TrajectoryBuilt:
        """End the session as its owner does, and build it."""
        attempt = self.session.attempt
        told: dict[str, Any] = {"exit_code": exit_code, "unanswered": unanswered, "failures": failures}
        self.write(exited("t.0", attempt=attempt, at=200.0, start_id=f"s{attempt}", **told))
        found = attempt_end(self.session, None)
        assert found is not None
        end, detail = found
        made = cut(self.session, end)
        self.write(
            SessionSealed(
                session_id="t.0",
                attempt=attempt,
                termination_reason=end,
                detail=detail,
                rows_digest=digest(made.rows),
                calls=sum(call.closed is not None for call in self.session.forest.calls.values()),
                sampled_tokens=self.session.sampled_tokens(),
                rule=RULE,
                fingerprints=b"".join(fingerprints(self.session.forest, attempt, end).values()),
                spec=self.spec,
                sealed_at=201.0,
            )
        )
        return build(self.session)

    def ledger_lines(self) -> list[str]:
        return [json.dumps(entry) for entry in self.ledger]


def replay(log: Sequence[bytes]) -> TrajectoryBuilt:
    """Build a session from its log alone, as the reconstructor does."""
    session = SessionLog("t.0")
    for offset, data in enumerate(log, start=1):
        session.apply(decode(data), offset=offset, record_at=100.0)
    return build(session)


def plain(trajectory: TrajectoryBuilt) -> dict[str, Any]:
    """The trajectory as the checker reads it."""
    return msgspec.msgpack.decode(encode(trajectory), type=dict[str, Any])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool(call: Message, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": text}
