"""`hermes`: Hermes Agent (PyPI hermes-agent) over OpenAI Chat.

Options: `toolsets`, a comma-separated list of Hermes's own groups of tools (`terminal,file`; all where it is not given);
`answer_tokens` (the run's max_tokens; its own where that sets none); `context_tokens`, the model's context as it is to know it
(65536): at three quarters of that it replaces its history by a summary. Hermes refuses to work with less than 64000.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.harnesses import pip
from evener.harnesses.port import Context, Judged, Launch, Probe, numbers, only_options
from evener.harnesses.printed import last_line
from evener.proto.spec import Quirks, SideCall, Tolerance
from evener.sandboxes.port import HOME

LOCK: Final = Path(__file__).with_name("requirements.txt")
PACKAGE: Final = pip.Package(name="hermes-agent", version="0.19.0", lock=LOCK)
OPTIONS: Final = ("toolsets", "context_tokens", "answer_tokens")
CONFIG: Final = ".hermes"
CONTEXT_TOKENS: Final = 65536
NO_LIMIT: Final = 1_000_000
"""Of its own turns, 90 without a word: a run's budgets say when to stop."""
QUIET: Final[dict[str, Any]] = {
    "memory": {"nudge_interval": 0},
    "skills": {"creation_nudge_interval": 0},
    "auxiliary": {"title_generation": {"enabled": False}},
    "model_catalog": {"enabled": False},
    "security": {"tirith_enabled": False, "allow_lazy_installs": False},
    "agent": {"max_turns": NO_LIMIT},
}
"""No reviews of a session in the background, no titles; no model list, no scanner and no packages from the network."""
NOT_AFTER: Final = 4_102_444_800
"""The year 2100: until then it does not ask for a newer version."""
CACHED: Final = {
    ".update_check": {"ts": NOT_AFTER, "ver": PACKAGE.version, "rev": None, "behind": 0},
    "models_dev_cache.json": {"none": {}},
}
"""What it would fetch from the network at its start."""
ONE_SHOT: Final = (
    "from gateway.session_context import declare_stateless_channel; declare_stateless_channel(); from hermes_cli.main import main; main()"
)
"""As Hermes does in its own one-shot runners, whose turns are limited: a sub-agent ends before its parent goes on, and answers it.
Else it works in the background, and what it says is lost: nobody is there when the parent has ended."""
ERROR: Final = re.compile(rb"^Error: (.+)$", re.MULTILINE)


class Hermes:
    """The real CLI, without background work, updates or telemetry. It strips text, drops reasoning and sorts the keys of arguments."""

    name = "hermes"
    summary = "Hermes Agent"
    version = PACKAGE.locked
    package = PACKAGE.pinned
    dialects = ("openai_chat",)
    has_tools = True
    probe = Probe(tool="terminal", arguments={"command": "{command}"})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.TEXT_TRIMMED, Tolerance.BLANK_TEXT_ABSENT, Tolerance.REASONING_ABSENT),
        side_calls=(SideCall(name="title", system=r"^Generate a short, descriptive title"),),
        retry_header="x-stainless-retry-count",
        compacted=r"^(?:You are a summarization agent creating a context checkpoint|\[CONTEXT COMPACTION)",  # the request, the summary
    )

    def check(self, options: Mapping[str, str]) -> None:
        only_options(options, OPTIONS, self.name)
        numbers(options, ("context_tokens", "answer_tokens"), self.name)

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 0 if "toolsets" in options else 60_000

    async def install(self, cache: Path) -> Path:
        return await pip.install(cache, self.name, PACKAGE)

    def launch(self, context: Context, bundle: Path) -> Launch:
        toolsets = ("-t", context.options["toolsets"]) if "toolsets" in context.options else ()
        files = {"config.yaml": _config(context), **CACHED}
        return Launch(
            argv=(
                pip.python_of(bundle),
                "-I",
                "-c",
                ONE_SHOT,
                "chat",
                "-Q",
                "--yolo",
                *toolsets,
                f"--query={context.instruction}",
            ),
            environment={"HERMES_HOME": f"{context.home}/{CONFIG}"},
            files={f"{HOME}/{CONFIG}/{name}": msgspec.json.encode(content) for name, content in files.items()},
        )

    def judge(self, exit_code: int, log: bytes) -> Judged:
        """Its own exit code tells."""
        if exit_code == 0:
            return Judged(exit_code=0)
        errors = ERROR.findall(log)
        return Judged(exit_code=exit_code, detail=errors[-1].decode(errors="replace")[-500:] if errors else last_line(log))


def _config(context: Context) -> dict[str, Any]:
    """Return its config.yaml; JSON is YAML."""
    model: dict[str, Any] = {
        "default": context.model,
        "provider": "custom",
        "base_url": f"{context.base_url}/v1",
        "api_key": context.key,
        "context_length": int(context.options.get("context_tokens", CONTEXT_TOKENS)),
    }
    if answer := context.options.get("answer_tokens", context.answer_tokens):
        model["max_tokens"] = int(answer)
    return {**QUIET, "model": model}


HARNESS: Final = Hermes()
