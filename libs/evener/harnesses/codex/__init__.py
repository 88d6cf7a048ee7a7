"""`codex`: OpenAI's Codex CLI (npm @openai/codex), speaking OpenAI Responses, with its own sandbox off.

Options:
- `tools`: `all`: as it ships, without web search, which would leave the sandbox. `lean`: also without sub-agents, goals and the skills
  that it brings.
- `context_tokens`: the model's context, as Codex is to know it. `compact_at_tokens`: where a summary replaces its history. If they are
  not given, Codex uses its own values, which assume a large model.

Codex sets no limit on an answer's tokens: the run's max_tokens holds, and an answer that reaches it ends Codex with an error.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from evener.harnesses import npm
from evener.harnesses.base import PackagedHarness
from evener.harnesses.port import ExitMeaning, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_event, last_line, told
from evener.proto.spec import Quirks
from evener.sandboxes.port import HOME
from evener.tasks.tables import McpServer, Transport

LOCK: Final = Path(__file__).with_name("package-lock.json")
PACKAGE: Final = npm.NpmPackage(name="@openai/codex", version="0.169.0", lock=LOCK, node=(16, 0))
CONFIG: Final = ".codex"
KEY: Final = "EVENER_KEY"
TOKENS: Final = {"context_tokens": "model_context_window", "compact_at_tokens": "model_auto_compact_token_limit"}
"""The key in config.toml of each option."""
QUIET: Final = ("plugins", "apps", "remote_plugin")
"""Features that look up names at start."""
LEAN: Final = ("multi_agent", "goals")


class Codex(PackagedHarness):
    """The real CLI. It returns everything verbatim, and arguments as the very text that was sampled."""

    name = "codex"
    summary = "OpenAI's Codex CLI"
    dialects = ("openai_responses",)
    mcp_transports = (Transport.STDIO, Transport.HTTP)
    probe = Probe(tool="exec_command", arguments={"cmd": "{command}"})
    quirks = Quirks(compacted=r"^Another language model started to solve", sub_agent_header="x-openai-subagent")
    options = {"tools": ("all", "lean"), **dict.fromkeys(TOKENS, 0)}

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 24_000 if options.get("tools") == "lean" else 39_000

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        headless = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-C", context.workdir)
        return Launch(
            argv=(*PACKAGE.program(bundle, "bin/codex.js"), "exec", *headless, "--", context.instruction),
            environment={"CODEX_HOME": f"{context.home}/{CONFIG}", KEY: context.key},
            files={f"{HOME}/{CONFIG}/config.toml": _config(context).encode()},
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the last event says, which is a failed turn if there was one."""
        last = last_event(log, "turn.completed", "turn.failed")
        if exit_code == 0 and last is not None and last["type"] == "turn.completed":
            return ExitMeaning(exit_code=0)
        return ExitMeaning(exit_code=exit_code or 1, detail=told(last, "error", "message") or last_line(log))


def _config(context: LaunchContext) -> str:
    """Return the config.toml. JSON strings are valid TOML strings."""
    lean = context.options.get("tools") == "lean"
    off = (*QUIET, *(LEAN if lean else ()))
    return "\n".join(
        (
            f"model = {_text(context.model)}",
            'model_provider = "evener"',
            "check_for_update_on_startup = false",
            'web_search = "disabled"',
            *(f"{key} = {context.options[option]}" for option, key in TOKENS.items() if option in context.options),
            "[model_providers.evener]",
            'name = "evener"',
            f"base_url = {_text(context.base_url + '/v1')}",
            f'env_key = "{KEY}"',
            'wire_api = "responses"',
            "[analytics]",
            "enabled = false",
            "[features]",
            *(f"{feature} = false" for feature in off),
            *(("[skills]", "bundled = { enabled = false }") if lean else ()),
            *(line for server in context.mcp_servers for line in _server(server)),
            "",
        )
    )


def _server(server: McpServer) -> Iterator[str]:
    """Yield the table of an MCP server."""
    yield f"[mcp_servers.{server.name}]"
    if server.transport is Transport.STDIO:
        yield f"command = {_text(server.command or '')}"
        yield f"args = [{', '.join(map(_text, server.args))}]"
        return
    yield f"url = {_text(server.url or '')}"
    if server.headers:
        yield f"http_headers = {{ {', '.join(f'{_text(name)} = {_text(value)}' for name, value in server.headers.items())} }}"


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()


HARNESS: Final = Codex(PACKAGE)
