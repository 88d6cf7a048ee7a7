"""Record how an engine answers on vLLM's token, chat and control endpoints, as JSON: for the contract that the scripted engine keeps.

    python scripts/record_engine.py http://127.0.0.1:8000 tests/contract/engines/recordings/vllm-cpu-0.32.json

The engine: `vllm serve FOLDER --served-model-name policy --max-model-len 2048 --enable-scale-out` with VLLM_SERVER_DEV_MODE=1, where
FOLDER comes from scripts/tiny_model.py.
"""

import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GENERATE = "/inference/v1/generate"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PROMPT = [1, 85, 83, 69, 2, 201, 1]
SAMPLING = {"max_tokens": 3, "temperature": 1.0, "seed": 1, "logprobs": 0}
KEPT_HEADERS = ("content-type", "transfer-encoding")


def generate(**changes: Any) -> dict[str, Any]:
    """Return a body for the generate endpoint; `sampling` is merged into the sampling parameters, None removes a field."""
    sampling = SAMPLING | changes.pop("sampling", {})
    body = {"model": "policy", "token_ids": PROMPT, "sampling_params": sampling} | changes
    return {name: value for name, value in body.items() if value is not None}


MESSAGES = [{"role": "user", "content": "What is the sum?"}]
CALLED = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
USED_TOOL = [
    *MESSAGES,
    {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "c1", "content": "12"},
]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]


def chat(**changes: Any) -> dict[str, Any]:
    """Return a body for the chat endpoint; None removes a field."""
    asked = {"max_tokens": 3, "temperature": 1.0, "seed": 1, "logprobs": True, "return_token_ids": True}
    body = {"model": "policy", "messages": MESSAGES} | asked | changes
    return {name: value for name, value in body.items() if value is not None}


TOKEN_IDS = {"return_tokens_as_token_ids": True}
LONG = [{"role": "user", "content": "x " * 3000}]
CASES: dict[str, tuple[str, str, Any]] = {
    "generate": ("POST", GENERATE, generate()),
    "generate_streamed": ("POST", GENERATE, generate(stream=True)),
    "generate_streamed_with_usage": ("POST", GENERATE, generate(stream=True, stream_options={"include_usage": True})),
    "generate_without_logprobs": ("POST", GENERATE, generate(sampling={"logprobs": None})),
    "generate_top_logprobs": ("POST", GENERATE, generate(sampling={"logprobs": 3, "max_tokens": 1})),
    "generate_two": ("POST", GENERATE, generate(sampling={"n": 2})),
    "generate_prompt_logprobs": ("POST", GENERATE, generate(sampling={"prompt_logprobs": 0})),
    "generate_stop_id": ("POST", GENERATE, generate(sampling={"stop_token_ids": list(range(512)), "max_tokens": 5})),
    "generate_end_of_text": ("POST", GENERATE, generate(sampling={"logit_bias": {"2": 100}})),
    "generate_with_request_id": ("POST", GENERATE, generate(request_id="r1")),
    "refused_without_ids": ("POST", GENERATE, generate(token_ids=None)),
    "refused_negative_id": ("POST", GENERATE, generate(token_ids=[1, -1])),
    "refused_unknown_id": ("POST", GENERATE, generate(token_ids=[1, 100000])),
    "refused_unknown_id_streamed": ("POST", GENERATE, generate(token_ids=[1, 100000], stream=True)),
    "refused_temperature": ("POST", GENERATE, generate(sampling={"temperature": -1.0})),
    "refused_max_tokens": ("POST", GENERATE, generate(sampling={"max_tokens": 0})),
    "refused_too_long": ("POST", GENERATE, generate(token_ids=[5] * 2048)),
    "refused_too_long_streamed": ("POST", GENERATE, generate(token_ids=[5] * 2048, stream=True)),
    "cut_by_the_context": ("POST", GENERATE, generate(token_ids=[5] * 2045, sampling={"max_tokens": 10})),
    "refused_unknown_model": ("POST", GENERATE, generate(model="other")),
    "refused_not_json": ("POST", GENERATE, "{"),
    "tokenize": ("POST", "/tokenize", {"model": "policy", "prompt": "<|im_start|>the agent 12", "add_special_tokens": False}),
    "models": ("GET", "/v1/models", None),
    "health": ("GET", "/health", None),
    "version": ("GET", "/version", None),
    "unknown_path": ("GET", "/nothing", None),
    "chat": ("POST", CHAT, chat()),
    "chat_ids_as_tokens": ("POST", CHAT, chat(**TOKEN_IDS)),
    "chat_streamed": ("POST", CHAT, chat(stream=True, **TOKEN_IDS)),
    "chat_streamed_with_usage": ("POST", CHAT, chat(stream=True, stream_options={"include_usage": True})),
    "chat_plain": ("POST", CHAT, chat(logprobs=None, return_token_ids=None)),
    "chat_plain_streamed": ("POST", CHAT, chat(stream=True, logprobs=None, return_token_ids=None)),
    "chat_top_logprobs": ("POST", CHAT, chat(top_logprobs=2, max_tokens=1, **TOKEN_IDS)),
    "chat_two": ("POST", CHAT, chat(n=2)),
    "chat_end_of_text": ("POST", CHAT, chat(logit_bias={"2": 100})),
    "chat_end_of_text_streamed": ("POST", CHAT, chat(logit_bias={"2": 100}, stream=True)),
    "chat_stop_id": ("POST", CHAT, chat(stop_token_ids=list(range(512)))),
    "chat_tools_not_chosen": ("POST", CHAT, chat(tools=TOOLS, tool_choice="none")),
    "chat_used_tool": ("POST", CHAT, chat(messages=USED_TOOL)),
    "chat_too_long": ("POST", CHAT, chat(messages=LONG)),
    "chat_too_long_streamed": ("POST", CHAT, chat(messages=LONG, stream=True)),
    "chat_without_messages": ("POST", CHAT, chat(messages=None)),
    "chat_unknown_model": ("POST", CHAT, chat(model="other")),
    "completion": ("POST", COMPLETIONS, {"model": "policy", "prompt": [1, 85], "return_token_ids": True} | SAMPLING | TOKEN_IDS),
    "completion_top_logprobs": ("POST", COMPLETIONS, {"model": "policy", "prompt": [1, 85]} | SAMPLING | {"logprobs": 2} | TOKEN_IDS),
    "tokenize_chat": ("POST", "/tokenize", {"model": "policy", "messages": MESSAGES}),
    "pause_unknown_mode": ("POST", "/pause?mode=x", None),
    "pause_keep": ("POST", "/pause?mode=keep", None),
    "is_paused": ("GET", "/is_paused", None),
    "update_weights": ("POST", "/collective_rpc", {"method": "reload_weights"}),
    "update_version": ("POST", "/update_weight_version", {"new_version": "step-1"}),
    "update_without_version": ("POST", "/update_weight_version", {}),
    "weight_info": ("GET", "/weight_info", None),
    "reset_prefix_cache": ("POST", "/reset_prefix_cache", None),
    "resume": ("POST", "/resume", None),
    "abort_requests": ("POST", "/abort_requests", {}),
    "update_version_back": ("POST", "/update_weight_version", {"new_version": "default"}),
}
"""Name to method, path and JSON body (a string is sent as it is)."""


def exchange(url: str, method: str, path: str, body: Any) -> dict[str, Any]:
    """Send one request; return status, kept headers and the text of the answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    sent = None if body is None else body if isinstance(body, str) else json.dumps(body)
    connection.request(method, path, sent, {"content-type": "application/json"})
    answer = connection.getresponse()
    headers = {name: value for name in KEPT_HEADERS if (value := answer.getheader(name))}
    return {"status": answer.status, "headers": headers, "text": answer.read().decode()}


def aborted(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the beginning and the end of a stream whose sampling the engine is told to abort after 0.3 s."""
    stop = threading.Timer(0.3, exchange, (url, "POST", "/pause?mode=abort", None))
    stop.start()
    answer = exchange(url, "POST", path, body)
    stop.join()
    time.sleep(0.2)
    exchange(url, "POST", "/resume", None)
    events = answer["text"].split("\n\n")
    return {"request": ["POST", path, body], **answer, "text": "\n\n".join(events[:1] + events[-3:])}


def main(url: str, path: Path) -> None:
    """Record every case and write them to `path`."""
    recorded = {name: {"request": list(case), **exchange(url, *case)} for name, case in CASES.items()}
    long = {"stream": True, "max_tokens": 1900, "ignore_eos": True}
    recorded["generate_aborted"] = aborted(url, GENERATE, generate(stream=True, sampling={"max_tokens": 1900, "ignore_eos": True}))
    recorded["chat_aborted"] = aborted(url, CHAT, chat(**long))
    lines = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in recorded.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
