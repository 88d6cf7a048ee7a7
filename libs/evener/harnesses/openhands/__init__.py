"""`openhands`: the OpenHands agent (PyPI openhands-sdk, openhands-tools) with a terminal and an editor, speaking OpenAI Chat unstreamed.

The SDK is a library: `driver.py` beside this file runs one conversation with it. Options: `context_tokens` and `answer_tokens` (the run's
max_tokens if not given), the model's limits as OpenHands is to know them; otherwise it guesses. Near `context_tokens`, which is at least
16384, or after a call that was refused for its length, a summary replaces the history.
"""

from pathlib import Path
from typing import Final

from evener.harnesses import pip
from evener.harnesses.base import PackagedHarness
from evener.harnesses.port import Launch, LaunchContext, Probe
from evener.proto.spec import Quirks, Tolerance
from evener.sandboxes.port import HOME

LOCK: Final = Path(__file__).with_name("requirements.txt")
PACKAGE: Final = pip.PypiPackage(name="openhands-sdk", version="1.56.0", lock=LOCK, beside=("openhands-tools",), sources=("func-timeout",))
DRIVER: Final = Path(__file__).with_name("driver.py")
INSTRUCTION: Final = "instruction.md"
LEAST_CONTEXT_TOKENS: Final = 16_384


class OpenHands(PackagedHarness):
    """The real SDK. It drops reasoning, and sends a text back as a list of parts."""

    name = "openhands"
    summary = "OpenHands"
    dialects = ("openai_chat",)
    probe = Probe(tool="terminal", arguments={"command": "{command}"})
    quirks = Quirks(
        tolerances=(Tolerance.BLANK_TEXT_ABSENT, Tolerance.REASONING_ABSENT),
        retry_header="x-stainless-retry-count",
        compacted=r"^\s*<EVENT>\n",  # a summary is asked for; the summary itself has no mark
    )
    options = {"context_tokens": LEAST_CONTEXT_TOKENS, "answer_tokens": 0}

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        limits = {"answer_tokens": context.answer_tokens, **context.options}
        return Launch(
            argv=(pip.python_of(bundle), "-I", f"{context.home}/{DRIVER.name}", f"{context.home}/{INSTRUCTION}"),
            environment={
                "OPENAI_BASE_URL": f"{context.base_url}/v1",
                "OPENAI_API_KEY": context.key,
                "OPENAI_MODEL": context.model,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "OPENHANDS_SUPPRESS_BANNER": "1",
                **{f"OPENHANDS_{name.upper()}": str(value) for name, value in limits.items() if value},
            },
            files={f"{HOME}/{DRIVER.name}": DRIVER.read_bytes(), f"{HOME}/{INSTRUCTION}": context.instruction.encode()},
        )


HARNESS: Final = OpenHands(PACKAGE)
