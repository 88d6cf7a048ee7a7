"""`hermes`: Hermes Agent (PyPI hermes-agent), speaking OpenAI Chat.

Options:
- `toolsets`: a comma-separated list of Hermes's own groups of tools (`terminal,file`; default: all).
- `answer_tokens`: the limit of an answer (the run's max_tokens; if that is not set, Hermes's own).
- `context_tokens`: the model's context, as Hermes is to know it (65536). At three quarters of it, a summary replaces the history.
  Hermes refuses to work with less than 64000.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.harnesses import pip
from evener.harnesses.base import PackagedHarness
from evener.harnesses.port import ExitMeaning, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_found
from evener.proto.spec import Quirks, SideCall, Tolerance
from evener.sandboxes.port import HOME

LOCK: Final = Path(__file__).with_name("requirements.txt")
PACKAGE: Final = pip.PypiPackage(name="hermes-agent", version="0.19.0", lock=LOCK)
CONFIG: Final = ".hermes"
CONTEXT_TOKENS: Final = 65536
NO_LIMIT: Final = 1_000_000
"""The limit of Hermes's own turns, which is 90 by default: the run's budgets decide when to stop."""
QUIET: Final[dict[str, Any]] = {
    "memory": {"nudge_interval": 0},
    "skills": {"creation_nudge_interval": 0},
    "auxiliary": {"title_generation": {"enabled": False}},
    "model_catalog": {"enabled": False},
    "security": {"tirith_enabled": False, "allow_lazy_installs": False},
    "agent": {"max_turns": NO_LIMIT},
}
"""Settings that turn off background reviews, titles, the model list, the scanner, and packages from the network."""
NOT_AFTER: Final = 4_102_444_800
"""The year 2100. Until then Hermes does not look for a newer version."""
CACHED: Final = {
    ".update_check": {"ts": NOT_AFTER, "ver": PACKAGE.version, "rev": None, "behind": 0},
    "models_dev_cache.json": {"none": {}},
}
"""Cache files that replace what Hermes would fetch from the network at its start."""
ONE_SHOT: Final = (
    "from gateway.session_context import declare_stateless_channel; declare_stateless_channel(); from hermes_cli.main import main; main()"
)
"""Starts Hermes as its own one-shot runners with limited turns do: a sub-agent finishes, and answers, before its parent continues.
Otherwise it would work in the background, and its result would be lost when the parent has ended."""
HEADLESS: Final = ("chat", "-Q", "--yolo")
ERROR: Final = re.compile(rb"^Error: (.+)$", re.MULTILINE)


class Hermes(PackagedHarness):
    """The real CLI, without background work, updates or telemetry. It strips text, drops reasoning and sorts the keys of arguments."""

    name = "hermes"
    summary = "Hermes Agent"
    dialects = ("openai_chat",)
    probe = Probe(tool="terminal", arguments={"command": "{command}"})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.TEXT_TRIMMED, Tolerance.BLANK_TEXT_ABSENT, Tolerance.REASONING_ABSENT),
        side_calls=(SideCall(name="title", system=r"^Generate a short, descriptive title"),),
        retry_header="x-stainless-retry-count",
        compacted=r"^(?:You are a summarization agent creating a context checkpoint|\[CONTEXT COMPACTION)",  # the request, the summary
    )
    options = {"toolsets": None, "context_tokens": 0, "answer_tokens": 0}

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 0 if "toolsets" in options else 60_000

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        toolsets = ("-t", context.options["toolsets"]) if "toolsets" in context.options else ()
        files = {"config.yaml": _config(context), **CACHED}
        return Launch(
            argv=(pip.python_of(bundle), "-I", "-c", ONE_SHOT, *HEADLESS, *toolsets, f"--query={context.instruction}"),
            environment={"HERMES_HOME": f"{context.home}/{CONFIG}"},
            files={f"{HOME}/{CONFIG}/{name}": msgspec.json.encode(content) for name, content in files.items()},
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the exit code says."""
        return ExitMeaning(exit_code=exit_code, detail="" if exit_code == 0 else last_found(ERROR, log))


def _config(context: LaunchContext) -> dict[str, Any]:
    """Return the config.yaml. JSON is valid YAML."""
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


HARNESS: Final = Hermes(PACKAGE)
