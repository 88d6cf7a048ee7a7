"""Record one right session of each kind: the real harness, Evener, and a scripted engine that plays the policy.

python examples/learn_pi/record.py FOLDER        # leaves FOLDER/recorded.json
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from demonstrations import Recorded
from running import NotDone, evener_up, own_process, submit_task
from tasks import Payload, make_task
from vocabulary import SPECIAL, save, train

from evener.client.client import Client
from evener.proto.arrays import int32s
from evener.proto.spec import Purpose, Sampling

GIVEN: Final = Payload("Greta", 86)
WRITTEN: Final = Payload("Xaver", 3759)
FILE: Final = "elsewhere.txt"
KINDS: Final = (("pi", "write"), ("pi", "copy"), ("script", "write"))


def _call(tool: str, **arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": tool, "arguments": arguments}]}


DONE: Final = {"say": "Done."}
WRITE: Final = {"path": FILE, "content": str(WRITTEN)}
RULES: Final = (
    {"match": "write_file", "tail": 0, "steps": [_call("write_file", **WRITE), DONE]},
    {"match": "Copy the text", "tail": 0, "steps": [_call("read", path="in.txt"), _call("bash", command=f"echo {WRITTEN} > {FILE}"), DONE]},
    {"match": "Write Greta", "tail": 0, "steps": [_call("write", **WRITE), DONE]},
)


async def record(folder: Path) -> list[Recorded]:
    """Run the sessions and return them."""
    save(train((), 0), folder / "bytes")
    (folder / "bytes" / "config.json").write_text("{}")
    (folder / "script.json").write_text(json.dumps({"rules": RULES}))
    model = str(folder / "bytes")
    command = ("engine", "scripted", "--script", str(folder / "script.json"), "--source", f"hf:{model}", "--template", "")
    async with own_process(sys.executable, "-m", "evener.cli", *command) as told:
        url = json.loads(await told())["url"]
        options = ("--engine", url, "--engine-kind", "scripted", "--model", model)
        async with evener_up(folder / "recording", *options) as client:
            return [await _session(client, folder, harness, kind) for harness, kind in KINDS]


async def _session(client: Client, folder: Path, harness: str, kind: str) -> Recorded:
    task_id = f"{kind}-{harness}"
    task = make_task(folder / "recording-tasks", task_id, kind, GIVEN)
    whole = Sampling(max_tokens=500)  # a token is a byte here
    await submit_task(client, task, task_id, run_id="record", harness=harness, samples=1, purpose=Purpose.COLLECT, sampling=whole)
    async for view in client.watch("record"):
        if view.task_id == task_id and view.outcome is not None:
            break
    trajectory = (await client.session(f"{task_id}.0")).trajectory
    if trajectory is None or len(trajectory.rows) != 1:
        msg = f"{task_id} was not recorded as one row: {trajectory}"
        raise NotDone(msg)
    row = trajectory.rows[0]
    ids, call_of = int32s(row.ids).tolist(), int32s(row.call_of).tolist()
    pieces = dict(zip(dict.fromkeys(ids), await client.pieces("policy", list(dict.fromkeys(ids))), strict=True))
    segments = [b"".join(pieces[token] for token in run).decode() for run in _runs(ids, call_of)]
    cwd, bundle = _between(segments[0], "<cwd>\n", "\n</cwd>"), _between(segments[0], "documentation: ", "/node_modules")
    texts = [_open(text, cwd, bundle) for text in segments]
    return Recorded(harness=harness, kind=kind, fed=tuple(texts[::2]), answers=tuple(texts[1::2]), cwd=cwd, bundle=bundle)


def _runs(ids: list[int], call_of: list[int]) -> list[list[int]]:
    """Return the row cut where what was given meets what was sampled: given first."""
    runs: list[list[int]] = []
    before = None
    for token, call in zip(ids, call_of, strict=True):
        if before is None or (call >= 0) != (before >= 0):
            runs.append([])
        runs[-1].append(token)
        before = call
    return runs


def _between(text: str, before: str, after: str) -> str:
    found = text.partition(before)[2]
    return found[: found.index(after)] if found else ""


def _open(text: str, cwd: str, bundle: str) -> str:
    """Put names of what is drawn into their places."""
    for value, place in ((cwd, "{cwd}"), (bundle, "{bundle}")):
        text = text.replace(value, place) if value else text
    text = text.replace(f"wrote {len(str(WRITTEN))} characters", "wrote {length} characters")
    return text.replace(str(GIVEN), "{payload}").replace(str(WRITTEN), "{written}").replace(FILE, "{file}")


if __name__ == "__main__":
    where = Path(sys.argv[1]).absolute()
    where.mkdir(parents=True, exist_ok=True)
    sessions = asyncio.run(record(where))
    (where / "recorded.json").write_bytes(msgspec.json.format(msgspec.json.encode(sessions)))
    print(f"{len(sessions)} sessions, special tokens {SPECIAL}")
