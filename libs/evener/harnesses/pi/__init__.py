"""`pi`: the Pi coding agent (npm @earendil-works/pi-coding-agent), in any of four dialects.

Options:
- `dialect`: `chat`, `responses`, `anthropic` or `google`.
- `tools`: a comma-separated list of the tools that it may use (default: read, bash, edit, write), or `none`.
- `context_tokens`: the model's context, as Pi is to know it (4096: what the embedded engine of `evener up` gives a call).
- `answer_tokens`: the limit of an answer (the run's max_tokens, otherwise 1024).
- `reasoning`: `false`, or `true` to request reasoning.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from evener.harnesses import npm
from evener.harnesses.base import PackagedHarness
from evener.harnesses.models_json import APIS, provider
from evener.harnesses.port import ExitMeaning, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_found
from evener.proto.spec import Quirks, Tolerance
from evener.sandboxes.port import HOME

LOCK: Final = Path(__file__).with_name("package-lock.json")
PACKAGE: Final = npm.NpmPackage(name="@earendil-works/pi-coding-agent", version="0.87.1", lock=LOCK, node=(22, 19))
PROVIDER: Final = "evener"
CONFIG: Final = ".pi/agent"
CONTEXT_TOKENS: Final = 4096
ANSWER_TOKENS: Final = 1024
KEPT_FREE_TOKENS: Final = 4096
"""Added to the context that Pi is told. Pi requests one token if prompt and answer leave less than this; the gateway knows what is left."""
HEADLESS: Final = ("--mode", "json", "--no-session")
STOP_REASON: Final = re.compile(rb'"stopReason":"(\w+)"')
ERROR_MESSAGE: Final = re.compile(rb'"errorMessage":"((?:[^"\\]|\\.)*)"')
FAILED: Final = frozenset({b"error", b"aborted"})


class Pi(PackagedHarness):
    """The real CLI, without sessions, updates or telemetry."""

    name = "pi"
    summary = "the Pi coding agent"
    dialects = ("openai_chat", "openai_responses", "anthropic_messages", "google_generate")
    probe = Probe(tool="bash", arguments={"command": "{command}"})
    quirks = Quirks(
        tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.BLANK_TEXT_ABSENT, Tolerance.TEXT_TRIMMED, Tolerance.REASONING_ABSENT),
        compacted=r"^(?:The conversation history before this point was compacted|# Conversation\n\[User\]: )",  # the summary, its request
    )
    options = {"dialect": tuple(APIS), "context_tokens": 0, "answer_tokens": 0, "reasoning": ("false", "true"), "tools": None}

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        return 0 if "tools" in options else 6_000

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        model = ("--provider", PROVIDER, "--model", context.model)
        relay = provider(context, context_tokens=CONTEXT_TOKENS, answer_tokens=ANSWER_TOKENS, kept_free_tokens=KEPT_FREE_TOKENS)
        # Pi reads a message that begins with - or @ as a flag or a file.
        message = f" {context.instruction}" if context.instruction[0] in "-@" else context.instruction
        return Launch(
            argv=(*PACKAGE.program(bundle, "dist/bundle/cli.js"), *model, *HEADLESS, *_tools(context.options), "-p", message),
            environment={
                "PI_CODING_AGENT_DIR": f"{context.home}/{CONFIG}",
                "PI_OFFLINE": "1",
                "PI_TELEMETRY": "0",
                "PI_SKIP_VERSION_CHECK": "1",
            },
            files={f"{HOME}/{CONFIG}/models.json": msgspec.json.encode({"providers": {PROVIDER: relay}})},
        )

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        """Return what the last stop reason says: in JSON mode Pi exits with 0 even if the model call failed for good."""
        reasons = STOP_REASON.findall(log)
        if exit_code == 0 and reasons and reasons[-1] not in FAILED:
            return ExitMeaning(exit_code=0)
        return ExitMeaning(exit_code=exit_code or 1, detail=last_found(ERROR_MESSAGE, log))


def _tools(options: Mapping[str, str]) -> tuple[str, ...]:
    match options.get("tools"):
        case None:
            return ()
        case "none":
            return ("--no-tools",)
        case tools:
            return ("--tools", tools)


HARNESS: Final = Pi(PACKAGE)
