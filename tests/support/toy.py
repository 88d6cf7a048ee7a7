"""A renderer and a model of bytes, for token tests: a sampled answer that is tokenized again has other ids, and is found out.

Some texts have two spellings, bytes or pairs of them. The renderer writes pairs; the model draws.
"""

import json
import random
from collections.abc import Callable, Sequence

import numpy as np

from evener.proto.ids import tool_call_id
from evener.proto.sessions import BridgedBy
from evener.templates.port import Bridge
from evener.tokens.digests import Message
from evener.tokens.forest import Ids

START, END = 256, 257
THOUGHT = "</think>"
PAIRS = [b"th", b"he", b"in", b"er", b"an", b"re", b'":', b'{"', b"  "]
PAIR_BASE = 300


class ToyRenderer:
    """Bytes, some pairs of bytes, and two special tokens. Append-only, so every bridge holds."""

    stop_ids = (END,)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The canonical spelling: pairs wherever they are."""
        del special
        return spelling(text, lambda: True)

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


def sample(text: str, drawn: random.Random) -> list[int]:
    """Spell a text as a model at a high temperature would: not canonically."""
    return spelling(text, lambda: drawn.random() < 0.5)


def spelling(text: str, paired: Callable[[], bool]) -> list[int]:
    """Return the ids of a text. `paired` is asked for each pair of bytes whether it is one id."""
    data, ids, at = text.encode(), [], 0
    while at < len(data):
        pair = data[at : at + 2]
        if pair in PAIRS and paired():
            ids.append(PAIR_BASE + PAIRS.index(pair))
            at += 2
        else:
            ids.append(data[at])
            at += 1
    return ids
