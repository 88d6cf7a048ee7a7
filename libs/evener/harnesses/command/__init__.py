"""`command`: any program. Options: `argv`, a JSON array of strings.

In each string, `{instruction}`, `{instruction_file}`, `{base_url}`, `{key}` and `{model}` are replaced. The usual variables of every
provider are in the program's environment.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from evener.dialects.registry import variables
from evener.harnesses.base import PlainHarness
from evener.harnesses.port import HarnessError, Launch, LaunchContext
from evener.sandboxes.port import HOME

INSTRUCTION: Final = "instruction.md"
PLACEHOLDER: Final = re.compile(r"\{(?:instruction|instruction_file|base_url|key|model)\}")


_words: Final = msgspec.json.Decoder(list[str])


class Command(PlainHarness):
    """A program of which nothing is known: it may do anything, and its history is taken as it comes."""

    name = "command"
    summary = "any program"
    version = "1"
    dialects = ("openai_chat", "openai_responses", "anthropic_messages", "google_generate")
    options = {"argv": None}

    def check(self, options: Mapping[str, str]) -> None:
        super().check(options)
        _argv(options)

    async def install(self, cache: Path) -> Path:
        return cache

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:  # noqa: ARG002 - it has no bundle
        words = {
            "{instruction}": context.instruction,
            "{instruction_file}": f"{context.home}/{INSTRUCTION}",
            "{base_url}": context.base_url,
            "{key}": context.key,
            "{model}": context.model,
        }
        return Launch(
            argv=tuple(_filled(word, words) for word in _argv(context.options)),
            environment=variables(context.base_url, context.key, context.model),
            files={f"{HOME}/{INSTRUCTION}": context.instruction.encode()},
        )


def _argv(options: Mapping[str, str]) -> list[str]:
    try:
        argv = _words.decode(options.get("argv", "null"))
    except (msgspec.DecodeError, msgspec.ValidationError) as cause:
        msg = f'harness command: option argv is a JSON array of strings, for example ["python3", "agent.py"]: {cause}'
        raise HarnessError(msg) from cause
    if not argv:
        msg = "harness command: option argv is empty"
        raise HarnessError(msg)
    return argv


def _filled(word: str, words: Mapping[str, str]) -> str:
    """Replace all names at once, so that braces in an instruction are not replaced again."""
    return PLACEHOLDER.sub(lambda found: words[found.group()], word)


HARNESS: Final = Command()
