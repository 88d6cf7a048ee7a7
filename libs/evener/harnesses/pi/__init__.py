"""`pi`: the Pi coding agent (npm @earendil-works/pi-coding-agent) over OpenAI Chat.

Options, the model as Pi is to know it: `context_tokens` (4096: what the embedded engine of `evener up` gives a call) and
`answer_tokens` (the run's max_tokens; 1024 where it sets none); `tools`, a comma-separated list of those it may use (all: read,
bash, edit, write; `none`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from evener.harnesses import npm
from evener.harnesses.port import Context, HarnessError, Judged, Launch, only_options
from evener.proto.spec import Quirks, Tolerance
from evener.sandboxes.port import HOME

PACKAGE: Final = npm.Package(name="@earendil-works/pi-coding-agent", version="0.87.1", node=(22, 19))
PROVIDER: Final = "evener"
CONFIG: Final = ".pi/agent"
OPTIONS: Final = ("context_tokens", "answer_tokens", "tools")
CONTEXT_TOKENS: Final = 4096
ANSWER_TOKENS: Final = 1024
KEPT_FREE_TOKENS: Final = 4096
"""Pi asks for one token where prompt and answer leave less of the context. The gateway knows what is left: Pi is told so much more."""
STOP_REASON: Final = re.compile(rb'"stopReason":"(\w+)"')
ERROR_MESSAGE: Final = re.compile(rb'"errorMessage":"((?:[^"\\]|\\.)*)"')
FAILED: Final = frozenset({b"error", b"aborted"})


class Pi:
    """The real CLI, without sessions, updates or telemetry."""

    name = "pi"
    version = PACKAGE.version
    has_tools = True
    quirks = Quirks(tolerances=(Tolerance.NUMBERS_LOOSE, Tolerance.BLANK_TEXT_ABSENT, Tolerance.TEXT_TRIMMED, Tolerance.REASONING_ABSENT))

    def check(self, options: Mapping[str, str]) -> None:
        only_options(options, OPTIONS, self.name)
        for name in ("context_tokens", "answer_tokens"):
            if not options.get(name, "1").isdecimal():
                msg = f"harness pi: option {name} is {options[name]!r}, not a number of tokens"
                raise HarnessError(msg)

    async def install(self, cache: Path) -> Path:
        return await npm.install(cache, self.name, PACKAGE)

    def launch(self, context: Context, bundle: Path) -> Launch:
        script = bundle / "node_modules" / PACKAGE.name / "dist" / "bundle" / "cli.js"
        model = ("--provider", PROVIDER, "--model", context.model)
        # Pi reads a message that begins with - or @ as a flag or a file.
        message = f" {context.instruction}" if context.instruction[0] in "-@" else context.instruction
        return Launch(
            argv=(npm.node_of(bundle), str(script), *model, "--mode", "json", "--no-session", *_tools(context.options), "-p", message),
            environment={
                "PI_CODING_AGENT_DIR": f"{context.home}/{CONFIG}",
                "PI_OFFLINE": "1",
                "PI_TELEMETRY": "0",
                "PI_SKIP_VERSION_CHECK": "1",
            },
            files={f"{HOME}/{CONFIG}/models.json": msgspec.json.encode({"providers": {PROVIDER: _provider(context)}})},
        )

    def judge(self, exit_code: int, log: bytes) -> Judged:
        """JSON mode exits with 0 even when the model call failed for good: the last stop reason tells."""
        reasons, errors = STOP_REASON.findall(log), ERROR_MESSAGE.findall(log)
        if exit_code == 0 and reasons and reasons[-1] not in FAILED:
            return Judged(exit_code=0)
        last = errors[-1] if errors else log.strip().rpartition(b"\n")[2]
        return Judged(exit_code=exit_code or 1, detail=last.decode(errors="replace")[-500:])


def _provider(context: Context) -> dict[str, object]:
    model = {
        "id": context.model,
        "name": context.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": int(context.options.get("context_tokens", CONTEXT_TOKENS)) + KEPT_FREE_TOKENS,
        "maxTokens": int(context.options.get("answer_tokens", context.answer_tokens or ANSWER_TOKENS)),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    return {"baseUrl": f"{context.base_url}/v1", "api": "openai-completions", "apiKey": context.key, "models": [model]}


def _tools(options: Mapping[str, str]) -> tuple[str, ...]:
    match options.get("tools"):
        case None:
            return ()
        case "none":
            return ("--no-tools",)
        case tools:
            return ("--tools", tools)


HARNESS: Final = Pi()
