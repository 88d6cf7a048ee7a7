"""The harness port: how one agent program is installed and launched headless, how its exit is classified, and its quirks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from evener.proto.errors import ConfigError, EvenerError
from evener.proto.spec import Quirks
from evener.tasks.tables import McpServer, Transport


class HarnessError(ConfigError):
    """Correct the harness's name, its options, or its quirks."""


class HarnessMissing(EvenerError):
    """Install what the message names, or run `evener doctor` to see what this machine lacks."""


class LaunchContext(Struct, frozen=True, kw_only=True):
    """The inputs of a launch. Paths are as programs in the sandbox see them."""

    instruction: str
    """The instruction for the agent."""
    base_url: str
    """The base URL of the relay, without `/v1`."""
    key: str
    """The key for the relay: the nonce of this start."""
    model: str
    """The model name that the harness requests."""
    answer_tokens: int | None = None
    """The largest number of tokens in an answer, by the run's sampling parameters. None: the run sets no limit."""
    workdir: str
    home: str
    options: Mapping[str, str] = {}
    """The options of the HarnessSpec."""
    mcp_servers: tuple[McpServer, ...] = ()
    """The task's servers of tools. Only a harness that takes them gets any."""


class Launch(Struct, frozen=True, kw_only=True):
    """A program to start. Its stdin is closed."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}
    """Files to write before the start, path (`/home/agent/...`) to content."""


class ExitMeaning(Struct, frozen=True, kw_only=True):
    """How the exit of a harness is understood."""

    exit_code: int
    """0 if the harness finished. The adapter corrects the code if the program's own code is misleading."""
    detail: str = ""


class Probe(Struct, frozen=True, kw_only=True):
    """How a policy makes this harness write a file: what the scripted engine of `evener harness check` answers."""

    tool: str
    """The name of the harness's shell tool, or of its tool that writes files."""
    arguments: Mapping[str, Any]
    """The arguments of the tool call. `{command}` (a shell command that writes the file), `{path}` and `{content}` are replaced in their
    texts."""

    def filled(self, path: str, content: str) -> dict[str, Any]:
        """Return the arguments that write a file. The path is relative to the working directory; the content has no quotes."""
        words = {"{command}": f"printf '%s' '{content}' > {path} && cat {path}", "{path}": path, "{content}": content}
        return {name: words.get(value, value) if isinstance(value, str) else value for name, value in self.arguments.items()}


class Harness(Protocol):
    """An agent program. Each folder of `evener.harnesses` implements one, without state."""

    name: str
    summary: str
    """A description in one line."""
    version: str
    """The pinned version, recorded with every session."""
    package: str | None
    """The pinned package that `install` installs: `npm:@openai/codex@0.169.0`. None: the harness comes with Evener."""
    dialects: tuple[str, ...]
    """The dialects that the harness speaks, the default first: `openai_chat`, `openai_responses`, `anthropic_messages`,
    `google_generate`."""
    has_tools: bool
    """Whether the harness runs commands or writes outside its working directory, so that a `local` sandbox needs the user's trust."""
    mcp_transports: tuple[Transport, ...]
    """The MCP servers that the harness can be given, by transport."""
    quirks: Quirks
    probe: Probe | None
    """How to make the harness write a file. None: its tools are not known."""

    def check(self, options: Mapping[str, str]) -> None:
        """Raise HarnessError for an option that is unknown, missing or wrong."""
        ...

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        """Return the approximate length of the first prompt without the instruction, to warn if no context can hold it. 0: not known."""
        ...

    async def install(self, cache: Path) -> Path:
        """Return the folder of the harness's read-only bundle, which is built below `cache` at first use. Raises HarnessMissing."""
        ...

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        """Return the program to start."""
        ...

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the exit means. `log` is the program's output, which may be cut in the middle."""
        ...


def bundle_of(harness: Harness, cache: Path) -> Path:
    """Return where `install` puts the harness's bundle, if it has one. The folder exists once it is complete."""
    return cache / f"{harness.name}-{harness.version}"
