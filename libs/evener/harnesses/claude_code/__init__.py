"""`claude_code`: Anthropic's Claude Code (npm @anthropic-ai/claude-code), speaking Anthropic Messages.

Options:
- `settings`: `lean`, for training: history is only appended to, all tools but those of the web are there from the start, and the parent
  waits for its sub-agents. `plain`: as it ships. `bare`: `lean` with three tools and a prompt of a tenth of the length.
- `tools`: a comma-separated list of its built-in tools to use instead (`Bash,Edit,Read`). Without `Agent` there are no sub-agents.
- `answer_tokens`: the limit of an answer (the run's max_tokens; if that is not set, Claude Code's own).
- `context_tokens`: the context, at least 100000. Near it, a summary replaces the history. If it is not given, that never happens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from evener.harnesses import npm
from evener.harnesses.base import PackagedHarness
from evener.harnesses.mcp import EVERY_TRANSPORT, for_claude
from evener.harnesses.port import ExitMeaning, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_event, last_line, told
from evener.proto.spec import Noise, Quirks, SideCall, Tolerance

LOCK: Final = Path(__file__).with_name("package-lock.json")
PACKAGE: Final = npm.NpmPackage(name="@anthropic-ai/claude-code", version="2.1.329", lock=LOCK, node=(0, 0))
PROGRAM: Final = "node_modules/@anthropic-ai/claude-code-linux-x64/claude"
"""The native program. The script that the package names is only put in its place by an install script, and install scripts are not run."""
LEAST_CONTEXT_TOKENS: Final = 100_000
"""Claude Code treats a smaller value as this one."""
HEADLESS: Final = ("--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", "--no-session-persistence")
WEB: Final = "WebSearch,WebFetch"
"""The tools of the web. One asks the model to make up its results, the other asks a server of Anthropic."""
QUIET: Final = {
    "IS_SANDBOX": "1",  # or it refuses to skip permissions as root
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
LEAN: Final = {
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "DISABLE_PROMPT_CACHING": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
SETTINGS: Final = {"lean": LEAN, "plain": {}, "bare": LEAN | {"CLAUDE_CODE_SIMPLE": "1"}}
FIRST_PROMPT_BYTES: Final = {"lean": 73_000, "plain": 49_000, "bare": 4_000}
MODELS: Final = tuple(f"ANTHROPIC_DEFAULT_{family}_MODEL" for family in ("HAIKU", "SONNET", "OPUS"))
"""The variables of the models that it requests besides its main model."""


class ClaudeCode(PackagedHarness):
    """The real CLI. It re-serialises arguments, drops blank text, and returns reasoning with its signature."""

    name = "claude_code"
    summary = "Anthropic's Claude Code"
    dialects = ("anthropic_messages",)
    mcp_transports = EVERY_TRANSPORT
    probe = Probe(tool="Bash", arguments={"command": "{command}", "description": "Writes a file"})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.BLANK_TEXT_ABSENT),
        side_calls=(SideCall(name="web_search", system=r"You run a web search for another Claude model"),),
        sub_agent_header="x-claude-code-agent-id",
        compacted=r"This session is being continued from a previous conversation that ran out of context",
        noise=(Noise(where="system", pattern=r"x-anthropic-billing-header:(?: *\w+=[^;\n]*;)+\n*"),),
    )
    options = {"settings": tuple(SETTINGS), "tools": None, "context_tokens": LEAST_CONTEXT_TOKENS, "answer_tokens": 0}

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 0 if "tools" in options else FIRST_PROMPT_BYTES[options.get("settings", "lean")]

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        options = context.options
        # It takes a message that begins with / for one of its commands, finds none, and exits with 0.
        message = f" {context.instruction}" if context.instruction.startswith("/") else context.instruction
        return Launch(
            argv=(str(bundle / PROGRAM), "-p", "--model", context.model, *HEADLESS, *_tools(options), *_servers(context), "--", message),
            environment={
                "ANTHROPIC_BASE_URL": context.base_url,
                "ANTHROPIC_AUTH_TOKEN": context.key,
                "CLAUDE_CONFIG_DIR": f"{context.home}/.claude",
                **QUIET,
                **SETTINGS[options.get("settings", "lean")],
                **dict.fromkeys((*MODELS, "CLAUDE_CODE_SUBAGENT_MODEL"), context.model),
                **_limits(context),
            },
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the last event says: Claude Code exits with 0 after some failures too."""
        last = last_event(log, "result")
        if exit_code == 0 and last is not None and not last.get("is_error"):
            return ExitMeaning(exit_code=0)
        said = told(last, "result") or told(last, "subtype")
        return ExitMeaning(exit_code=exit_code or 1, detail=(said or last_line(log))[-500:])


def _tools(options: Mapping[str, str]) -> tuple[str, ...]:
    if "tools" in options:
        return ("--tools", options["tools"])
    return () if options.get("settings") == "plain" else ("--disallowedTools", WEB)


def _servers(context: LaunchContext) -> tuple[str, ...]:
    if not context.mcp_servers:
        return ()
    servers = msgspec.json.encode({"mcpServers": for_claude(context.mcp_servers)}).decode()
    return ("--mcp-config", servers, "--strict-mcp-config")


def _limits(context: LaunchContext) -> dict[str, str]:
    limits = {}
    if answer := context.options.get("answer_tokens", context.answer_tokens):
        limits["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(answer)
    if "context_tokens" in context.options:
        limits["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = context.options["context_tokens"]
    return limits


HARNESS: Final = ClaudeCode(PACKAGE)
