"""A group rule and a member rule, added to a copy of the code as CONTRIBUTING says: a whole Evener runs by them, and the audit is content.

Run as a program, from that copy, the module is this Evener.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from msgspec import structs
from tests.support.audited import breaches
from tests.support.engines import smollm
from tests.support.log import read_log
from tests.support.together import submit, together
from tests.support.waiting import until

from evener.client.client import Client
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.spec import GraderSpec, GroupOptions, HarnessSpec, Sampling
from evener.proto.tasks import TaskOptions
from evener.service.state_folder import TOKEN_FILE

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ("proto", "libs", "services")

SPEC: Final = "proto/evener/proto/spec.py"
RULES: Final = "services/evener/trainer_bridge/rules.py"
ADDED: Final = (
    (SPEC, "    drop_zero_variance: bool = False\n", "    first_two: bool = False\n    without_first: bool = False\n"),
    (
        SPEC,
        "EXCLUSIONS: Final[dict[str, ExclusionReason]] = {\n",
        '    "first_two": ExclusionReason.LATE,\n    "without_first": ExclusionReason.ODD,\n',
    ),
    ("proto/evener/proto/reasons.py", '    STALE = "stale"\n', '    ODD = "odd"\n'),
    (
        RULES,
        "DELIVER: Final = GroupDecision(fate=Fate.DELIVER)\n",
        "def first_two(group):\n    return DELIVER if group.options.first_two and len(group.usable) >= 2 else None\n",
    ),
    (
        RULES,
        "WAIT: Final = GroupDecision(fate=Fate.WAIT)\n",
        "def without_first(member, options, _):\n    return options.without_first and member.index == 0\n",
    ),
    (RULES, "    ExclusionReason.STALE: stale,\n", "    ExclusionReason.ODD: without_first,\n"),
    (RULES, '    "deliver_early_at": deliver_early,\n', '    "first_two": first_two,\n'),
)
"""File, the text behind which something is added, and what."""


def test_what_new_rules_exclude_is_as_promised(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, code / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, anchor, added in ADDED:
        text = (code / name).read_text()
        assert text.count(anchor) == 1, (name, anchor)
        (code / name).write_text(text.replace(anchor, anchor + added))
    path = os.pathsep.join([*(str(code / folder) for folder in SOURCES), str(ROOT)])
    command = [sys.executable, "-m", "tests.integration.test_new_rules", str(tmp_path / "state")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "first_two: late late; without_first: odd; 0 breaches", done.stdout


async def whole_run(folder: Path) -> str:
    """Run a task by each new rule; return the exclusions and what the audit says."""
    options = TaskOptions(
        run_id="run", samples=4, harness=HarnessSpec(name="script"), grader=GraderSpec(name="harbor"), sampling=Sampling(max_tokens=64)
    )
    new: dict[str, dict[str, Any]] = {name: {name: True} for name in ("first_two", "without_first")}
    async with (
        scripted_engine(Script(default=Rule(say="one two three four five six seven eight nine ten")), smollm()) as engine,
        together(folder, engine, capacity=8) as context,
        Client(context.address, (folder / TOKEN_FILE).read_text().strip()) as client,
    ):
        for name, chosen in new.items():
            await submit(client, "ten-words", structs.replace(options, group=GroupOptions(**chosen)), task_id=name)

        async def over() -> bool:
            log = await read_log(context.bus, context.blobs)
            return len(log.ended) == len(new) and len(log.scored) == len(new) * options.samples

        await until(over)
        log = await read_log(context.bus, context.blobs)
        wrong = await breaches(context.bus, context.blobs)
    excluded = {name: [one.excluded for one in log.groups[name][0][1].members if one.excluded is not None] for name in new}
    return "; ".join([*(f"{name}: {' '.join(sorted(reasons))}" for name, reasons in excluded.items()), f"{len(wrong)} breaches", *wrong])


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(whole_run(Path(sys.argv[1])))}\n")
