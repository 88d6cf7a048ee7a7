"""`script`: an example of a self-made harness (`agent.py` beside this file), standard library only.

Options: `turns`, user messages that follow the instruction, one per line; `stream` (`1`: request streams); `max_calls`; `tools` (`0`: offer
none).
"""

from pathlib import Path
from typing import Final

from evener.dialects.registry import variables
from evener.harnesses.base import PlainHarness
from evener.harnesses.port import Launch, LaunchContext, Probe
from evener.proto.spec import Quirks
from evener.sandboxes.port import HOME

AGENT: Final = Path(__file__).with_name("agent.py")
INSTRUCTION: Final = "instruction.md"


class ScriptHarness(PlainHarness):
    """Runs `agent.py` with the sandbox's Python. Its one tool cannot leave the working directory."""

    name = "script"
    summary = "a small self-made agent, standard library only"
    version = "2"
    dialects = ("openai_chat",)
    has_tools = False
    probe = Probe(tool="write_file", arguments={"path": "{path}", "content": "{content}"})
    quirks = Quirks(retry_header="x-retry-count")
    options = {"turns": None, "stream": None, "max_calls": None, "tools": None}

    async def install(self, cache: Path) -> Path:  # noqa: ARG002 - it comes with Evener
        return AGENT.parent

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        own = {f"SCRIPT_{name.upper()}": value for name, value in context.options.items()}
        return Launch(
            argv=("python3", "-I", str(bundle / AGENT.name), f"{context.home}/{INSTRUCTION}"),
            environment=variables(context.base_url, context.key, context.model) | own,
            files={f"{HOME}/{INSTRUCTION}": context.instruction.encode()},
        )


HARNESS: Final = ScriptHarness()
