"""Long agent sessions for benches: a harness that reads, thinks and calls tools, over a policy whose ids are drawn, not sampled.

Nothing here is timed. `Served` plays the gateway's steps on real requests of the Chat dialect: parse, place, commit, seal.
"""

import json
import random
from typing import Any

import msgspec
import numpy as np
from tests.support.builders import alone, exited, started

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.arrays import pack_float32, pack_int32
from evener.proto.codec import AnyEvent
from evener.proto.sessions import CallClosed, CallOpened, Choice, FinishReason, SessionSealed
from evener.proto.spec import PolicyOptions, Quirks, Sampling
from evener.provider_gateway.request import body_digest
from evener.templates.port import Message, Renderer
from evener.tokens.forest import Ids
from evener.tokens.history import History
from evener.tokens.inconsistencies import fingerprints
from evener.tokens.place import Placed, place
from evener.tokens.rows import cut, digest
from evener.tokens.session import SessionLog, attempt_end

CHAT = OpenAIChat()
WORDS = (  # noqa: SIM905 (a text is easier to read)
    "the file holds a list of names and each line ends with a number that says how often it was read def return import class self "
    "error warning path value index key none true false while for in if else try except with open as print assert test result"
).split()
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name} a file", "parameters": {"type": "object", "properties": {"path": {}}}},
    }
    for name in ("read", "bash", "edit", "write")
]
SPEC = alone("bench")


class Served:
    """One session, as its gateway holds it."""

    def __init__(self, renderer: Renderer, session_id: str, quirks: Quirks | None = None) -> None:
        self.renderer = renderer
        self.quirks = quirks or Quirks()
        self.session = SessionLog(session_id)
        self.events: list[AnyEvent] = []
        self.write(started(session_id, SPEC, start_id="s", dispatched_at=99.0, started_at=100.0, quirks=self.quirks))
        self.history = History(self.session.forest, self.quirks, 1)

    def parse(self, body: bytes) -> CanonicalRequest:
        """Return the request as the gateway reads it."""
        return CHAT.parse("/v1/chat/completions", body)

    def place(self, request: CanonicalRequest) -> Placed:
        """Return where it hangs."""
        return place(
            self.session.forest,
            self.history,
            request.messages,
            request.tools,
            renderer=self.renderer,
            options=PolicyOptions(),
            quirks=self.quirks,
            digests=request.digests,
        )

    def commit(self, request: CanonicalRequest, placed: Placed, ids: Ids, finish: FinishReason = FinishReason.STOP) -> Message:
        """Write a call with its sampled ids, int32[S]; return the canonical answer."""
        number = len(self.session.forest.calls) + 1
        answer = self.renderer.parse(ids, call_id=f"c{number}", choice=0, tools=request.tools)
        self.write(
            CallOpened(
                session_id=self.session.session_id,
                attempt=1,
                start_id="s",
                call_id=f"c{number}",
                request_id=f"r{number}",
                dialect="openai_chat",
                model="policy",
                policy="policy",
                engine_id="e",
                placement=placed.placement,
                prompt_delta_ids=pack_int32(placed.prompt_delta_ids),
                prompt_tokens=len(placed.context),
                history_base=placed.history_base,
                messages=msgspec.json.encode(placed.messages),
                message_count=len(request.messages),
                tools=msgspec.json.encode(request.tools) if placed.history_base is None else None,
                sampling=Sampling(),
                streamed=True,
                body_digest=body_digest(request),
                opened_at=float(number),
            )
        )
        choice = Choice(
            sampled_ids=pack_int32(ids),
            logprobs=pack_float32(np.full(len(ids), -0.5, np.float32)),
            versions=pack_int32(np.zeros(len(ids), np.int32)),
            finish_reason=finish,
            message=msgspec.json.encode(answer),
        )
        self.write(
            CallClosed(
                session_id=self.session.session_id,
                attempt=1,
                call_id=f"c{number}",
                request_id=f"r{number}",
                choices=(choice,),
                answer_id=f"r{number}",
                answer_created=1,
                closed_at=number + 0.5,
            )
        )
        return answer

    def seal(self) -> list[AnyEvent]:
        """End the session; return its whole log."""
        self.write(exited(self.session.session_id, start_id="s", at=200.0))
        found = attempt_end(self.session, None)
        if found is None:
            msg = "an exit ends a session"
            raise RuntimeError(msg)
        end, _ = found
        prints = fingerprints(self.session.forest, self.session.attempt, end)
        self.write(
            SessionSealed(
                session_id=self.session.session_id,
                attempt=1,
                termination_reason=end,
                rows_digest=digest(cut(self.session, end).rows),
                calls=len(self.session.forest.calls),
                sampled_tokens=self.session.sampled_tokens(),
                fingerprints=b"".join(prints.values()),
                spec=SPEC,
                sealed_at=201.0,
            )
        )
        return self.events

    def write(self, event: AnyEvent) -> None:
        """Append to the log and fold."""
        self.events.append(event)
        self.session.apply(event, offset=len(self.events), record_at=100.0)
        if isinstance(event, CallOpened | CallClosed):
            self.history.add(self.session.forest.calls[event.call_id])


class Talk(Served):
    """A harness with a growing history, over an engine that says what is drawn here."""

    def __init__(self, renderer: Renderer, seed: int, *, result_words: int, answer_words: int) -> None:
        super().__init__(renderer, f"bench.{seed}")
        self.random = random.Random(seed)  # noqa: S311 - a seeded bench
        self.result_words, self.answer_words = result_words, answer_words
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"You are a careful engineer. {self.words(100)}"},
            {"role": "user", "content": f"Mend the failing test. {self.words(40)}"},
        ]

    def words(self, count: int) -> str:
        """Return some prose."""
        return " ".join(self.random.choices(WORDS, k=count))

    def body(self) -> bytes:
        """Return the request that the harness sends now."""
        return json.dumps({"model": "policy", "stream": True, "messages": self.messages, "tools": TOOLS}).encode()

    def record(self, request: CanonicalRequest, placed: Placed) -> None:
        """Answer with a tool call, commit it, and let the harness add the tool's result."""
        call = json.dumps({"name": "read", "arguments": {"path": f"src/{self.random.choice(WORDS)}.py"}})
        spelled = f"{self.words(self.answer_words)}\n<tool_call>\n{call}\n</tool_call>"
        ids = np.array([*self.renderer.encode(spelled, special=True), self.renderer.stop_ids[0]], np.int32)
        answer = self.commit(request, placed, ids)
        call_id = answer["tool_calls"][0]["id"]
        sent = {"id": call_id, "type": "function", "function": json.loads(call) | {"arguments": json.dumps(json.loads(call)["arguments"])}}
        self.messages.append({"role": "assistant", "content": answer["content"], "tool_calls": [sent]})
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": self.words(self.result_words)})

    def turn(self) -> None:
        """Play one whole turn."""
        request = self.parse(self.body())
        self.record(request, self.place(request))
