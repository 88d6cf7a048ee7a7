"""Long agent sessions for benches: a harness that reads, thinks and calls tools, over a policy whose ids are drawn, not sampled.

Nothing here is timed. `ChatSession` plays the gateway's steps on real requests of the Chat dialect: parse, place, commit, seal.
"""

import json
import random
from typing import Any

import numpy as np
from tests.support.builders import alone, call_closed, choice
from tests.support.world import OwnedSession

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.sessions import FinishReason
from evener.proto.spec import Quirks
from evener.provider_gateway.core import body_digest
from evener.templates.port import Renderer
from evener.tokens.digests import Message
from evener.tokens.forest import Ids
from evener.tokens.place import Placed

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
LOGPROB = -0.5
"""The logprob of every token: nothing here depends on it."""


class ChatSession(OwnedSession):
    """A session, whose gateway reads requests of the Chat dialect."""

    renderer: Renderer

    def __init__(self, renderer: Renderer, session_id: str, quirks: Quirks | None = None) -> None:
        super().__init__(renderer, session_id, alone("bench"), quirks)

    def parse(self, body: bytes) -> CanonicalRequest:
        """Return the request as the gateway reads it."""
        return CHAT.parse("/v1/chat/completions", body)

    def place_request(self, request: CanonicalRequest) -> Placed:
        """Return the call that it extends."""
        return self.place(request.messages, request.tools, digests=request.digests)

    def commit(self, request: CanonicalRequest, placed: Placed, ids: Ids, finish: FinishReason = FinishReason.STOP) -> Message:
        """Write a call with its sampled ids, int32[S]; return the canonical answer."""
        digest = body_digest(request)
        opened = self.opening(placed, request.messages, request.tools, model="policy", streamed=True, body_digest=digest)
        answer = self.renderer.parse(ids, call_id=opened.call_id, choice=0, tools=request.tools)
        self.write(opened)
        self.write(call_closed(opened, [choice(ids.tolist(), answer, finish, logprobs=[LOGPROB] * len(ids))]))
        return answer


class Talk(ChatSession):
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
        self.record(request, self.place_request(request))
