"""A task with a Dockerfile: what the agent needs is only in the image that is built from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.dockerd import IMAGE

from evener.engines.scripted import ToolCall
from evener.harnesses.registry import harness

FILES: Final = {
    "instruction.md": "Sum up the readings of the plant in total.txt, and say in report.txt who you are.",
    "task.toml": '[task]\nname = "evener/plant"\n',
    "environment/Dockerfile": f"""\
FROM {IMAGE}
COPY total.sh /opt/plant/total.sh
RUN seq 1 40 > /opt/plant/readings && mkdir -p /srv/work && chown 1000:1000 /srv/work
WORKDIR /srv/work
USER 1000:1000
""",
    "environment/total.sh": "t=0; for n in $(cat /opt/plant/readings); do t=$((t + n)); done; echo $t\n",
    "tests/test.sh": """\
[ "$(cat total.txt)" = 820 ] && [ "$(cat report.txt)" = "1000 /srv/work" ] && reward=1
echo ${reward:-0} > /logs/verifier/reward.txt
""",
}
COMMANDS: Final = ("cat /opt/plant/readings", "sh /opt/plant/total.sh | tee total.txt", "echo $(id -u) $PWD | tee report.txt")


def dockerfile_task(folder: Path) -> Path:
    """Write the task; return its folder. Blocks."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def shell_calls(name: str) -> Sequence[ToolCall]:
    """Return the tool calls by which a harness with a shell solves the task."""
    probe = harness(name).probe
    assert probe is not None
    return [
        ToolCall(name=probe.tool, arguments={key: command if value == "{command}" else value for key, value in probe.arguments.items()})
        for command in COMMANDS
    ]
