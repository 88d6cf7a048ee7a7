"""Close the loop on a laptop: a small policy gets better through the real Pi, while its weights are updated under it.

    make learn        # or: python examples/learn_pi/learn.py --out outputs/learn

Leaves OUT.json with the figures and OUT/report.html with the curves, and says of each thing that must hold whether it was met; exit
status 1 where one was missed. `pi` runs as a plain process with your rights, in folders of its own; the policy is a million parameters
that were trained on two tasks.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from arms import LIBRARIES, Arm, Bench, train
from bars import bars
from checking import check, score_again
from figures import figures
from held_out import evaluate
from proxy import recording_proxy
from report import only_picture, page, through_pi
from running import evener_up, own_process
from tasks import HELD_OUT

from evener.client.views import EngineRequest
from evener.engines.vllm_server import VllmOptions, find_program, start_vllm
from evener.proto.errors import EvenerError

HERE: Final = Path(__file__).parent
SESSIONS_AT_A_TIME: Final = 16
START_THREADS: Final = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
"""The environment of the supervised start. Threads that spin while they wait make it ten times slower if the cores have other work too."""
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
        said["checked"] = await check(client, run, said["arms"])
        said["scored"] = await score_again(bench)
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
    environ = {"PYTHONPATH": ":".join(LIBRARIES), "HF_HUB_OFFLINE": "1", **START_THREADS}
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
    """Return the three trainings. Each begins with the start's weights."""
    return (
        Arm(name="through-pi", harness="pi", kinds=("write", "copy"), steps=asked.steps, groups=asked.groups),
        Arm(name="through-script", harness="script", kinds=("write",), steps=asked.script_steps, groups=asked.groups),
        Arm(name="spans", harness="script", kinds=("write",), steps=asked.spans, groups=1, samples=8, again=3, ahead=3, learning_rate=1e-4),
    )


async def arms(bench: Bench, asked: argparse.Namespace) -> dict[str, Any]:
    """Train through Pi, and from the start again through the other harness; evaluate each in both."""
    said: dict[str, Any] = {"held_out": {}, "arms": {}}

    async def look(when: str, harness: str, kind: str, policy: str = "policy") -> None:
        found = await evaluate(bench, f"{when}-{harness}-{kind}", harness, kind, policy=policy)
        said["held_out"][f"{when} {harness} {kind}"] = msgspec.to_builtins(found)

    both = (("pi", "write"), ("pi", "copy"), ("script", "write"))
    through_pi, through_script, spans = plan(asked)
    await asyncio.gather(*(look("before", harness, kind) for harness, kind in both))
    said["arms"][through_pi.name] = await train(bench, through_pi)
    beside = (("after-pi", "policy"), ("control", "control"))
    await asyncio.gather(*(look(when, harness, kind, policy) for harness, kind in both for when, policy in beside))
    await begin_again(bench, through_script)
    said["arms"][through_script.name] = await train(bench, through_script)
    await asyncio.gather(*(look("after-script", harness, "write") for harness in ("script", "pi")))
    await begin_again(bench, spans)
    said["arms"][spans.name] = await train(bench, spans)
    return said


async def begin_again(bench: Bench, arm: Arm) -> None:
    """Publish the start's weights as a version of their own, for an arm that begins with them."""
    folder = bench.out / f"start-of-{arm.name}"
    shutil.copytree(bench.start, folder)
    versions = (await bench.client.policy("policy")).versions
    await bench.client.publish("policy", 1 + max(one.version for one in versions), str(folder))


def main() -> None:
    """Run, and leave figures and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/learn"))
    parser.add_argument("--vllm", help="the `vllm` program; found, where it is not named")
    parser.add_argument("--steps", type=int, default=26, help="of the training through Pi")
    parser.add_argument("--script-steps", type=int, default=26, help="of the training through the script harness")
    parser.add_argument("--groups", type=int, default=2, help="of each task, in a step: 4 sessions each")
    parser.add_argument(
        "--held-out", type=int, choices=range(1, HELD_OUT + 1), default=HELD_OUT, help="prompts that are evaluated: 4 sessions each"
    )
    parser.add_argument("--spans", type=int, default=45, help="steps of the run whose answers span updates")
    asked = parser.parse_args()
    try:
        said = asyncio.run(learn(asked))
    except EvenerError as failed:
        sys.exit(str(failed))
    sys.exit(0 if leave(asked.out, said) else 1)


def leave(out: Path, said: dict[str, Any]) -> bool:
    """Write figures and report, print which conditions were met, and return whether all were."""
    told = figures(said)
    shown = bars(said, told)
    told["bars"] = {bar.name: bar.met for bar in shown}
    out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
    (out / "report.html").write_text(page(said, told, shown))
    (out / "reward.svg").write_text(only_picture(through_pi(said, told)))
    print(json.dumps(told, indent=1))
    print(*shown, sep="\n", flush=True)
    return all(bar.met for bar in shown)


if __name__ == "__main__":
    main()
