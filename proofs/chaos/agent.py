"""A harness double with a ledger: `python agent.py [--stream] [--leave-key] LEDGER INSTRUCTION_FILE`. Standard library only.

It takes as many steps as its instruction says ("... in 3 steps"), one tool call each, and leaves its last answer in answer.txt.
Requests that fail for a passing reason are sent again as they were. Whatever it receives it appends to the ledger, one JSON line
at a time, before it acts on it. `--leave-key` notes its key too: who runs `--as-orphan` with it stands for a process that it left and
that nobody could find.
"""

import argparse
import hashlib
import http.client
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Message = dict[str, Any]

URL, KEY = os.environ["OPENAI_BASE_URL"] + "/chat/completions", os.environ["OPENAI_API_KEY"]
SANDBOX = os.path.basename(os.environ.get("EVENER_SANDBOX", ""))  # noqa: PTH119 - not worth the import
TOOL = {"name": "step", "description": "Takes a step.", "parameters": {"type": "object", "properties": {"go": {"type": "boolean"}}}}
TRIES, PAUSE_SECONDS, SERVER_ERROR = 40, 0.25, 500
ORPHAN_SECONDS, ORPHAN_PAUSE_SECONDS = 60.0, 0.05
ORPHAN_WORDS = "I am an orphan."


class Failed(Exception):
    """The model does not answer."""


def note(ledger: Path, kind: str, **fields: Any) -> None:
    """Append a line, at once and whole: it is there even if this process is killed next."""
    line = json.dumps({"kind": kind, "sandbox": SANDBOX, "pid": os.getpid(), "url": URL, "at": time.time(), **fields}) + "\n"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def post(body: bytes) -> Message:
    """Send one request; return the answer's id, message and end."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(URL, body, headers)) as answer:  # noqa: S310 - the URL is an argument
        if answer.headers["content-type"].startswith("text/event-stream"):
            return read_stream(answer)
        whole = json.load(answer)
    return {"id": whole["id"], "message": whole["choices"][0]["message"], "end": whole["choices"][0]["finish_reason"]}


def read_stream(lines: Iterable[bytes]) -> Message:
    """Put a streamed answer together. Raises ConnectionError for one that is cut, or ends in an error."""
    content, calls, answer_id, end = "", dict[int, Message](), "", None
    for line in lines:
        chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {}
        if "error" in chunk:
            raise ConnectionError(chunk["error"])
        for choice in chunk.get("choices", []):
            answer_id, end = chunk["id"], choice["finish_reason"] or end
            content += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(part["index"], {"id": part.get("id"), "type": "function", "function": {}})
                for key, text in part["function"].items():
                    call["function"][key] = call["function"].get(key, "") + text
    if end is None:
        msg = "the stream was cut"
        raise ConnectionError(msg)
    return {"id": answer_id, "message": {"role": "assistant", "content": content, "tool_calls": list(calls.values())}, "end": end}


def ask(ledger: Path, messages: list[Message], *, stream: bool) -> Message:
    """Return the model's next message. Raises Failed."""
    tools = [{"type": "function", "function": TOOL}]
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": tools, "stream": stream}).encode()
    digest = hashlib.sha256(body).hexdigest()
    for tried in range(1, TRIES + 1):
        note(ledger, "asks", body_digest=digest, tried=tried)
        try:
            answer = post(body)
        except urllib.error.HTTPError as error:
            note(ledger, "refused", status=error.code, body_digest=digest, tried=tried)
            if error.code < SERVER_ERROR:
                raise Failed(error.code) from error
        except (OSError, http.client.HTTPException) as error:
            note(ledger, "broken", error=str(error), body_digest=digest, tried=tried)
        else:
            note(ledger, "answered", body_digest=digest, tried=tried, answer_id=answer["id"], message=answer["message"], end=answer["end"])
            message: Message = answer["message"]
            return message
        time.sleep(PAUSE_SECONDS)
    raise Failed


def work(ledger: Path, instruction: str, *, stream: bool) -> str:
    """Follow the instruction; return the last answer."""
    steps = re.search(r"in (\d+) steps", instruction)
    messages: list[Message] = [{"role": "user", "content": instruction}]
    taken = 0
    while True:
        message = ask(ledger, messages, stream=stream)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"] or ""
        for call in message["tool_calls"]:
            taken += 1
            told = f"This was step {taken} of {steps[1] if steps else 1}."
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})


def haunt(ledger: Path) -> None:
    """Wait until the relay is gone; then go on asking at its address, with its key."""
    note(ledger, "orphaned")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": ORPHAN_WORDS}]}).encode()
    last, deadline, listening = None, time.monotonic() + ORPHAN_SECONDS, True
    while time.monotonic() < deadline:
        time.sleep(ORPHAN_PAUSE_SECONDS)
        try:
            if listening:
                urllib.request.urlopen(URL.replace("/chat/completions", "/models")).close()  # noqa: S310 - as above
                continue
            found = (200, post(body)["id"])
        except urllib.error.HTTPError as error:
            found = (error.code, "")
        except (OSError, http.client.HTTPException):
            listening, found = False, (0, "")
        if found != last:
            note(ledger, "haunted", status=found[0], answer_id=found[1])
            last = found


def main() -> None:
    """Work, or haunt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--leave-key", action="store_true")
    parser.add_argument("--as-orphan", action="store_true")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("instruction", type=Path)
    options = parser.parse_args()
    if options.as_orphan:
        haunt(options.ledger)
        return
    note(options.ledger, "began")
    if options.leave_key:
        note(options.ledger, "keyed", key=KEY)
    try:
        answer = work(options.ledger, options.instruction.read_text(), stream=options.stream)
    except Failed as failed:
        sys.exit(f"the model does not answer: {failed}")
    Path("answer.txt").write_text(answer)


if __name__ == "__main__":
    main()
