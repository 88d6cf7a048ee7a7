"""`openclaw`: one headless turn of OpenClaw (npm openclaw), speaking OpenAI Chat, OpenAI Responses or Anthropic Messages.

Options:
- `dialect`: `chat`, `responses` or `anthropic`.
- `context_tokens` (65536) and `answer_tokens` (the run's max_tokens, otherwise 8192): the model's limits, as OpenClaw is to know them.
- `reasoning`: `false`, or `true` to request reasoning.

In Chat and Messages, a note of its own moves with every request, so that no request begins with the one before: each call is a row.
"""

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.harnesses import npm
from evener.harnesses.base import PackagedHarness
from evener.harnesses.models_json import provider
from evener.harnesses.port import ExitMeaning, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_found
from evener.proto.spec import Quirks, Tolerance
from evener.sandboxes.port import HOME

LOCK: Final = Path(__file__).with_name("package-lock.json")
PACKAGE: Final = npm.NpmPackage(name="openclaw", version="2026.9.6", lock=LOCK, node=(24, 16), completed_by=("openclaw.mjs", "--version"))
DIALECTS: Final = ("chat", "responses", "anthropic")
PROVIDER: Final = "evener"
CONFIG: Final = ".openclaw"
INSTRUCTION: Final = "instruction.md"
CONTEXT_TOKENS: Final = 65536
ANSWER_TOKENS: Final = 8192
RAW_ERROR: Final = re.compile(rb"rawError=(.+)$", re.MULTILINE)


class OpenClaw(PackagedHarness):
    """The real CLI, without gateway, updates or telemetry. In Chat it removes underscores from tool-call ids."""

    name = "openclaw"
    summary = "OpenClaw"
    dialects = ("openai_chat", "openai_responses", "anthropic_messages")
    probe = Probe(tool="exec", arguments={"command": "{command}"})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.BLANK_TEXT_ABSENT, Tolerance.REASONING_ABSENT, Tolerance.CALL_ID_LETTERS),
        retry_header="x-stainless-retry-count",
        compacted=r"^(?:<conversation>|The conversation history before this point was compacted)",  # the summary's request, the summary
    )
    options = {"dialect": DIALECTS, "context_tokens": 0, "answer_tokens": 0, "reasoning": ("false", "true")}

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        home = f"{context.home}/{CONFIG}"
        turn = ("--message-file", f"{context.home}/{INSTRUCTION}", "--cwd", context.workdir, "--timeout", "0", "--json")
        return Launch(
            argv=(*PACKAGE.program(bundle, "openclaw.mjs"), "agent", "exec", "--config", f"{home}/openclaw.json", *turn),
            environment={"OPENCLAW_HOME": context.home, "OPENCLAW_NO_AUTO_UPDATE": "1", "OPENCLAW_NO_RESPAWN": "1"},
            files={
                f"{HOME}/{CONFIG}/openclaw.json": msgspec.json.encode(_config(context)),
                f"{HOME}/{INSTRUCTION}": context.instruction.encode(),
            },
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the exit code means. The reason is the provider's error in the log; the program's last output tells less."""
        return ExitMeaning(exit_code=exit_code, detail="" if exit_code == 0 else last_found(RAW_ERROR, log))


def _config(context: LaunchContext) -> dict[str, Any]:
    relay = provider(context, context_tokens=CONTEXT_TOKENS, answer_tokens=ANSWER_TOKENS)
    # All is one turn: without this it looks at the length of its history only where the turn ends. Not by a guess of its context.
    in_time = {"enabled": "context_tokens" in context.options}
    return {
        "models": {"mode": "merge", "providers": {PROVIDER: relay}},
        "agents": {"defaults": {"model": {"primary": f"{PROVIDER}/{context.model}"}, "compaction": {"midTurnPrecheck": in_time}}},
        "update": {"checkOnStart": False},
        "telemetry": {"enabled": False},
    }


HARNESS: Final = OpenClaw(PACKAGE)
