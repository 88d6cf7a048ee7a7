"""`gemini_cli`: Google's Gemini CLI (npm @google/gemini-cli), speaking Google streamGenerateContent.

Options:
- `tools`: a comma-separated list of the tools that it may use (`run_shell_command,read_file`; default: all but those of the web).
  Without `invoke_agent` there are no sub-agents.
- `answer_tokens`: the limit of an answer (the run's max_tokens; if that is not set, none).
- `compact_at_tokens`: where a summary replaces its history (524288: it assumes a context of 1048576 tokens for every model).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.harnesses import npm
from evener.harnesses.base import PackagedHarness
from evener.harnesses.mcp import EVERY_TRANSPORT, for_gemini
from evener.harnesses.port import ExitMeaning, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_event, last_line, told
from evener.proto.spec import Quirks, SideCall, Tolerance
from evener.sandboxes.port import HOME

LOCK: Final = Path(__file__).with_name("package-lock.json")
PACKAGE: Final = npm.NpmPackage(name="@google/gemini-cli", version="0.61.0", lock=LOCK, node=(20, 0))
CONTEXT_TOKENS: Final = 1_048_576
"""The context that it assumes for an unknown model."""
HOSTED: Final = ("google_web_search", "web_fetch")
"""Tools that ask another model of Google, by its name."""
QUIET: Final[dict[str, Any]] = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}


class GeminiCli(PackagedHarness):
    """The real CLI, without telemetry or updates. It drops the text of thoughts."""

    name = "gemini_cli"
    summary = "Google's Gemini CLI"
    dialects = ("google_generate",)
    mcp_transports = EVERY_TRANSPORT
    probe = Probe(tool="run_shell_command", arguments={"command": "{command}"})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.REASONING_ABSENT),
        side_calls=(SideCall(name="router", system=r"You are a specialized Task Routing AI", tools=False),),
    )
    options = {"tools": None, "compact_at_tokens": 0, "answer_tokens": 0}

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 0 if "tools" in options else 47_000

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        how = ("--yolo", "-m", context.model, "--output-format", "stream-json")
        # It takes a message that begins with / for one of its commands, and /init for a task of its own.
        message = f" {context.instruction}" if context.instruction.startswith("/") else context.instruction
        return Launch(
            argv=(*PACKAGE.program(bundle, "bundle/gemini.js"), *how, f"--prompt={message}"),
            environment={
                "GOOGLE_GEMINI_BASE_URL": context.base_url,
                "GEMINI_API_KEY": context.key,
                "GEMINI_CLI_TRUST_WORKSPACE": "true",  # or it asks before each tool, and nobody answers
                "GEMINI_CLI_NO_RELAUNCH": "true",
            },
            files={f"{HOME}/.gemini/settings.json": msgspec.json.encode(_settings(context))},
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the last event says."""
        last = last_event(log, "result")
        if exit_code == 0 and last is not None and last.get("status") == "success":
            return ExitMeaning(exit_code=0)
        return ExitMeaning(exit_code=exit_code or 1, detail=(told(last, "error", "message") or last_line(log))[-500:])


def _settings(context: LaunchContext) -> dict[str, Any]:
    settings, options = dict(QUIET), context.options
    settings["tools"] = {"core": options["tools"].split(",")} if "tools" in options else {"exclude": HOSTED}
    if "compact_at_tokens" in options:
        settings["model"] = {"compressionThreshold": int(options["compact_at_tokens"]) / CONTEXT_TOKENS}
    if answer := options.get("answer_tokens", context.answer_tokens):
        limit = {"generateContentConfig": {"maxOutputTokens": int(answer)}}
        settings["modelConfigs"] = {"customOverrides": [{"match": {"model": context.model}, "modelConfig": limit}]}
    if context.mcp_servers:
        settings["mcpServers"] = for_gemini(context.mcp_servers)
    return settings


HARNESS: Final = GeminiCli(PACKAGE)
