"""A provider for peers: it answers every request with the same 64 tokens, at once. `python -m proofs.bench.gateway_canned TOKENIZER`.

Chat is answered by events. `/inference/v1/generate` is answered whole, its tokens named as `token_id:N`: what verifiers asks for, and
no longer what vLLM 0.32 writes there.
"""

import json
import socket
import sys

import uvicorn
import uvloop
from proofs.bench.gateway_load import CALLED, SAID
from starlette.types import Receive, Scope, Send
from tokenizers import Tokenizer


def _event(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-canned", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
    return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"


def _answer() -> bytes:
    arguments = json.dumps(CALLED["arguments"])
    called = {"index": 0, "id": "call_1", "type": "function", "function": {"name": CALLED["name"], "arguments": ""}}
    events = [_event({"role": "assistant", "content": ""})]
    events += [_event({"content": f"{word} "}) for word in SAID.split()]
    events.append(_event({"tool_calls": [called]}))
    pieces = [arguments[at : at + 3] for at in range(0, len(arguments), 3)]
    events += [_event({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in pieces]
    return b"".join([*events, _event({}, "tool_calls"), b"data: [DONE]\n\n"])


def _generated(tokenizer: str) -> bytes:
    said = f"{SAID}\n<tool_call>\n{json.dumps(CALLED)}\n</tool_call><|im_end|>"
    ids = Tokenizer.from_file(tokenizer).encode(said).ids
    content = [{"token": f"token_id:{token}", "logprob": -0.5, "top_logprobs": []} for token in ids]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
    return json.dumps({"request_id": "canned", "choices": [choice]}).encode()


class Canned:
    """The application."""

    def __init__(self, tokenizer: str) -> None:
        self._chat = _answer()
        self._generated = _generated(tokenizer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request and answer it."""
        while (await receive()).get("more_body"):
            pass
        kind, body = (b"text/event-stream", self._chat) if "chat" in scope["path"] else (b"application/json", self._generated)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})


async def main(tokenizer: str) -> None:
    """Serve until killed."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)  # noqa: T201 - what its parent waits for
    await uvicorn.Server(uvicorn.Config(Canned(tokenizer), lifespan="off", log_level="error")).serve(sockets=[listening])


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
