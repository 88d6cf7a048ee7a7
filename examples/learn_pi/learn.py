"""Close the loop on a laptop: a small policy gets better through the real Pi, while its weights are updated under it.

    make learn        # or: python examples/learn_pi/learn.py --out outputs/learn

Leaves OUT.json with the figures and OUT/report.html with the curves. `pi` runs as a plain process with your rights, in folders of its
own; the policy is a million parameters that were trained on two tasks.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from arms import LIBRARIES, Arm, Bench, evaluate, train
from figures import figures
from proxy import recording_proxy
from report import only_picture, page, through_pi
from running import evener_up, own_process

from evener.client.client import Client
from evener.client.groups import Groups
from evener.client.views import EngineRequest
from evener.engines.vllm_server import VllmOptions, find_program, start_vllm
from evener.proto.codec import encode
from evener.proto.trajectories import GroupMerged

HERE: Final = Path(__file__).parent
CHECKER: Final = HERE.parents[1] / "tests" / "checker.py"
SESSIONS_AT_A_TIME: Final = 8
VLLM: Final = ("--max-model-len=1024", "--max-num-seqs=32")
FOLDER_OF_RUN: Final = "run"

CONFIG: Final = """log_level = "warning"

[sandbox_runner]
capacity = {capacity}

[[provider_gateway.policies]]
name = "policy"
source = "hf:{model}"

[[provider_gateway.policies]]
name = "control"
source = "hf:{model}"
"""


async def learn(asked: argparse.Namespace) -> dict[str, Any]:
    """Run everything; return the figures."""
    out: Path = asked.out.absolute()
    python = find_program(asked.vllm).with_name("python")
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (nothing else runs yet)
    start = await make_start(out, python)
    started = time.monotonic()
    run = out / FOLDER_OF_RUN
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    async with AsyncExitStack() as stack:
        policy, control = await asyncio.gather(
            *(stack.enter_async_context(vllm(run, name, start, asked.vllm)) for name in ("policy", "control"))
        )
        proxy = await stack.enter_async_context(recording_proxy(policy, run / "ledger.jsonl"))
        (run / "evener.toml").write_text(CONFIG.format(capacity=SESSIONS_AT_A_TIME, model=start))
        options = ("--config", str(run / "evener.toml"), "--engine", proxy, "--model", str(start))
        client = await stack.enter_async_context(evener_up(run / "state", *options))
        await client.join_engine(EngineRequest(engine_id="control", kind="vllm", url=control, policy="control"))
        told = json.loads((run / "state" / "evener.json").read_text())
        bench = Bench(client=client, out=run, start=start, python=python, url=told["url"], held_out=asked.held_out)
        said = await arms(bench, asked)
        said["checked"] = await check(client, run)
    said["sessions_run"] = sum(arm.steps * arm.groups * len(arm.kinds) * arm.samples for arm in plan(asked))
    said["start_seconds"] = started - begun
    said["seconds"] = time.monotonic() - begun
    (run / "said.json").write_text(json.dumps(said))
    return said


async def make_start(out: Path, python: Path) -> Path:
    """Record the harnesses and make the policy, unless it is there; return its folder."""
    folder = out / "start"
    if (folder / "done").exists():
        return folder
    async with own_process(sys.executable, str(HERE / "record.py"), str(out / "recorded"), log=out / "record.log") as line:
        print(await line(), flush=True)
    command = (str(python), "-u", str(HERE / "start.py"), str(out / "recorded" / "recorded.json"), str(folder))
    environ = {"PYTHONPATH": ":".join(LIBRARIES), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    async with own_process(*command, log=out / "start.log", environ=environ) as line:
        while not (said := await line()).startswith("spoilt"):
            print(said, flush=True)
    (folder / "done").touch()
    return folder


@asynccontextmanager
async def vllm(out: Path, name: str, model: Path, program: str | None) -> AsyncIterator[str]:
    """Serve the start weights inside this block; yield the URL."""
    options = VllmOptions(model=model, program=program, served_name=name, extra=VLLM)
    server = await start_vllm(options, out / f"vllm-{name}.log")
    try:
        await server.until_ready(lambda seconds, line: print(f"vLLM starts, {seconds:.0f} s: {line[:100]}", flush=True))
        yield server.url
    finally:
        await server.stop()


def plan(asked: argparse.Namespace) -> tuple[Arm, Arm, Arm]:
    """Return the three trainings. Each begins with the start's weights; between them the start is published as a version of its own."""
    steps, second = asked.steps, asked.steps + 2
    return (
        Arm(name="through-pi", harness="pi", kinds=("write", "copy"), steps=steps, groups=asked.groups),
        Arm(name="through-script", harness="script", kinds=("write",), steps=steps, groups=asked.groups, first_version=second),
        Arm(name="spans", harness="script", kinds=("write",), steps=asked.spans, groups=1, samples=8, first_version=second + steps + 1),
    )


async def arms(bench: Bench, asked: argparse.Namespace) -> dict[str, Any]:
    """Train through Pi, and from the start again through the other harness; evaluate each in both."""
    said: dict[str, Any] = {"held_out": {}, "arms": {}}

    async def look(when: str, harness: str, kind: str, policy: str = "policy") -> None:
        said["held_out"][f"{when} {harness} {kind}"] = await evaluate(bench, f"{when}-{harness}-{kind}", harness, kind, policy=policy)

    async def begin_again(arm: Arm) -> None:
        folder = bench.out / f"start-of-{arm.name}"
        shutil.copytree(bench.start, folder)
        await bench.client.publish("policy", arm.first_version - 1, str(folder))

    both = (("pi", "write"), ("pi", "copy"), ("script", "write"))
    through_pi, through_script, spans = plan(asked)
    for harness, kind in both:
        await look("before", harness, kind)
    said["arms"][through_pi.name] = await train(bench, through_pi)
    for harness, kind in both:
        await look("after-pi", harness, kind)
        await look("control", harness, kind, "control")
    await begin_again(through_script)
    said["arms"][through_script.name] = await train(bench, through_script)
    for harness in ("script", "pi"):
        await look("after-script", harness, "write")
    await begin_again(spans)
    said["arms"][spans.name] = await train(bench, spans)
    return said


async def check(client: Client, run: Path) -> dict[str, Any]:
    """Compare every row that was delivered with the ledger of the pass-through, by the program that knows nothing of Evener."""
    sessions, delivered, trained = 0, 0, []
    with (run / "trajectories.msgpack").open("wb") as file:
        async for group in Groups(client, follow=False):
            sessions += group.event.size
            delivered += len(group.sessions)
            trained.append((group.run_id, group.partition, group.offset))
            for frame in frames(group.event):
                file.write(len(frame).to_bytes(4, "big") + frame)
    command = (sys.executable, str(CHECKER), str(run / "ledger.jsonl"), str(run / "trajectories.msgpack"))
    checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    print(f"checker: {checked.stdout.strip()[-300:]}", flush=True)
    return {
        "sessions": sessions,
        "delivered": delivered,
        "groups": trained,
        "faults": checked.stdout.count("\n") - 1,
        "exit": checked.returncode,
    }


def frames(event: GroupMerged) -> list[bytes]:
    """Return the trajectories of a group as the checker reads them."""
    return [encode(member.scored.trajectory) for member in event.members if member.scored is not None]


def main() -> None:
    """Run, and leave figures and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/learn"))
    parser.add_argument("--vllm", help="the `vllm` program; found, where it is not named")
    parser.add_argument("--steps", type=int, default=20, help="of each training")
    parser.add_argument("--groups", type=int, default=4, help="of each task, in a step: 4 sessions each")
    parser.add_argument("--held-out", type=int, default=16, help="prompts that are evaluated: 4 sessions each")
    parser.add_argument("--spans", type=int, default=80, help="steps of the run whose answers span updates")
    asked = parser.parse_args()
    said = asyncio.run(learn(asked))
    told = figures(said)
    asked.out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
    (asked.out / "report.html").write_text(page(said, told))
    (asked.out / "reward.svg").write_text(only_picture(through_pi(said, told)))
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
