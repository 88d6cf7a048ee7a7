"""`qwen_code`: Qwen Code (npm @qwen-code/qwen-code), speaking OpenAI Chat or Anthropic Messages.

Options:
- `dialect`: `chat` or `anthropic`.
- `without`: a comma-separated list of tools that it does not get (`agent,list_agents`: no sub-agents).
- `answer_tokens`: the limit of an answer (the run's max_tokens; if that is not set, Qwen Code's own).
- `context_tokens`: the model's context, as Qwen Code is to know it. Near it, a summary replaces the history.
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
PACKAGE: Final = npm.NpmPackage(name="@qwen-code/qwen-code", version="0.24.4", lock=LOCK, node=(22, 0), programs="vendor/ripgrep/*/rg")
AUTH: Final = {"chat": "openai", "anthropic": "anthropic"}
"""Qwen Code's name for each dialect."""
HEADLESS: Final = {
    "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    "QWEN_STREAM_IDLE_TIMEOUT_MS": "0",  # no limit: Anthropic's pings do not count for it, and 240 s are soon over
}
QUIET: Final[dict[str, Any]] = {
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "telemetry": {"enabled": False},
    "memory": {"enableManagedAutoMemory": False},
}


class QwenCode(PackagedHarness):
    """The real CLI, without telemetry, updates or a memory. It re-serialises arguments and trims reasoning."""

    name = "qwen_code"
    summary = "Qwen Code"
    dialects = ("openai_chat", "anthropic_messages")
    mcp_transports = EVERY_TRANSPORT
    probe = Probe(tool="run_shell_command", arguments={"command": "{command}", "is_background": False})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.TEXT_TRIMMED, Tolerance.BLANK_TEXT_ABSENT, Tolerance.REASONING_ABSENT),
        side_calls=(
            SideCall(name="memory", system=r"acting as the managed memory extraction subagent"),
            SideCall(
                name="web_fetch", system=r"^Extract and summarize the requested information from the provided web content", tools=False
            ),
        ),
        retry_header="x-stainless-retry-count",
        compacted=r"<state_snapshot>",
    )
    options = {"dialect": tuple(AUTH), "without": None, "context_tokens": 0, "answer_tokens": 0}

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 0 if "without" in options else 71_000

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        options = context.options
        auth = AUTH[options.get("dialect", "chat")]
        # It takes a message that begins with / for one of its commands.
        message = f" {context.instruction}" if context.instruction.startswith("/") else context.instruction
        how = ("--auth-type", auth, "-m", context.model, "--yolo", "--output-format", "stream-json")
        return Launch(
            argv=(*PACKAGE.program(bundle, "cli.js"), *how, f"--prompt={message}"),
            environment=_provider(context, auth) | {**HEADLESS, **_answer(context)},
            files={f"{HOME}/.qwen/settings.json": msgspec.json.encode(_settings(context))},
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the last event says."""
        last = last_event(log, "result")
        if exit_code == 0 and last is not None and not last.get("is_error"):
            return ExitMeaning(exit_code=0)
        said = told(last, "error", "message") or told(last, "result")
        return ExitMeaning(exit_code=exit_code or 1, detail=(said or last_line(log))[-500:])


def _provider(context: LaunchContext, auth: str) -> dict[str, str]:
    family, base_url = ("OPENAI", f"{context.base_url}/v1") if auth == "openai" else ("ANTHROPIC", context.base_url)
    return {f"{family}_BASE_URL": base_url, f"{family}_API_KEY": context.key, f"{family}_MODEL": context.model}


def _answer(context: LaunchContext) -> dict[str, str]:
    answer = context.options.get("answer_tokens", context.answer_tokens)
    return {"QWEN_CODE_MAX_OUTPUT_TOKENS": str(answer)} if answer else {}


def _settings(context: LaunchContext) -> dict[str, Any]:
    settings, options = dict(QUIET), context.options
    if "without" in options:
        settings["permissions"] = {"deny": options["without"].split(",")}
    if "context_tokens" in options:
        settings["model"] = {"generationConfig": {"contextWindowSize": int(options["context_tokens"])}}
    if context.mcp_servers:
        settings["mcpServers"] = for_gemini(context.mcp_servers)
    return settings


HARNESS: Final = QwenCode(PACKAGE)
