"""A self-made agent harness: `python agent.py INSTRUCTION_FILE`. It knows nothing of Evener and needs only Python.

It finds its model by OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, offers one tool, and leaves its last answer in answer.txt.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Message = dict[str, Any]

URL, KEY = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
STREAM, TOOLS = os.environ.get("SCRIPT_STREAM") == "1", os.environ.get("SCRIPT_TOOLS", "1") == "1"
MAX_CALLS, TRIES, RETRY_SECONDS, LONGEST_SECONDS = int(os.environ.get("SCRIPT_MAX_CALLS", "12")), 6, 0.2, 60.0
TOO_MANY_REQUESTS, SERVER_ERROR = 429, 500
TEXT = {"type": "string"}
PARAMETERS = {"type": "object", "properties": {"path": TEXT, "content": TEXT}, "required": ["path", "content"]}
WRITE_FILE = {"name": "write_file", "description": "Write a file in the working directory.", "parameters": PARAMETERS}


def ask(messages: list[Message]) -> Message:
    """Return the model's next message. A request that fails for a transient reason is sent again unchanged."""
    request: Message = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "stream": STREAM}
    body = json.dumps(request | ({"tools": [{"type": "function", "function": WRITE_FILE}]} if TOOLS else {})).encode()
    failed: object = None
    for tried in range(TRIES):
        pause = RETRY_SECONDS * 2**tried
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}", "x-retry-count": str(tried)}
        try:
            with urllib.request.urlopen(urllib.request.Request(URL, body, headers)) as answer:  # noqa: S310 - the URL is an argument
                message: Message = read_stream(answer) if STREAM else json.load(answer)["choices"][0]["message"]
                return message
        except urllib.error.HTTPError as error:
            failed = f"{error.code} {error.read().decode(errors='replace')}"
            if error.code < SERVER_ERROR and error.code != TOO_MANY_REQUESTS:
                break
            pause = wished_pause(error.headers.get("retry-after", "")) or pause
        except (urllib.error.URLError, ConnectionError, http.client.HTTPException) as error:
            failed = error
        time.sleep(pause)
    sys.exit(f"model call failed: {failed}")


def wished_pause(retry_after: str) -> float | None:
    """Return the seconds, at most a minute, that a provider asks the client to wait. None: it names no number."""
    return min(int(retry_after), LONGEST_SECONDS) if retry_after.isdecimal() else None


def read_stream(lines: Iterable[bytes]) -> Message:
    """Assemble the deltas of a streamed answer."""
    content, calls = "", dict[int, Message]()
    for line in lines:
        chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {}
        if "error" in chunk:
            sys.exit(f"model call failed: {chunk['error']}")
        for delta in (choice["delta"] for choice in chunk.get("choices", [])):
            content += delta.get("content") or ""
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"id": part.get("id"), "type": "function", "function": {}})
                for key, text in part["function"].items():
                    call["function"][key] = call["function"].get(key, "") + text
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls.values())} if calls else {})


def use(call: Message) -> str:
    """Execute a tool call. A mistake of the model becomes the tool's answer."""
    try:
        wanted = json.loads(call["function"]["arguments"])
        path = Path(wanted["path"]).resolve()
        if call["function"]["name"] != "write_file" or not path.is_relative_to(Path.cwd().resolve()):
            return "error: only write_file, and only in the working directory"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted["content"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"error: {error}"
    return f"wrote {len(wanted['content'])} characters to {wanted['path']}"


def main() -> None:
    """Answer the instruction, and each further turn."""
    turns = [Path(sys.argv[1]).read_text(), *os.environ.get("SCRIPT_TURNS", "").splitlines()]
    messages: list[Message] = [{"role": "system", "content": "You are a helpful assistant."}]
    calls = 0
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        while calls < MAX_CALLS:
            messages.append(ask(messages))
            calls += 1
            if not (wanted := messages[-1].get("tool_calls")):
                break
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": use(call)} for call in wanted]
    answers = [message.get("content") for message in messages if message["role"] == "assistant"]
    Path("answer.txt").write_text(answers[-1] or "")


main()
