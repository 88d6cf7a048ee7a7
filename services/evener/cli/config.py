"""What `evener up` is told besides the configuration of its services."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, structs

from evener.service.config import ServiceConfig


def half_of_the_cores() -> int:
    """Return half of this machine's cores, at least one."""
    return max(1, (os.cpu_count() or 1) // 2)


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process with everything: the table `[up]`."""

    port: Annotated[int, Meta(ge=0, le=65535)] = 8700
    """Port to listen on. 0: any free one."""
    engine: Annotated[str, Meta(pattern=r"^(embedded|none|https?://.+)$")] = "embedded"
    """What samples: `embedded` (llama.cpp in a child process), `none` (engines join by `POST /engines`), or an engine's base URL.

    One that does not answer yet is waited for, with a warning now and again; one that is refused ends this process.
    """
    engine_kind: Literal["vllm", "scripted"] = "vllm"
    """What listens at the engine's URL: `vllm` or `scripted`."""
    model: str | None = None
    """GGUF file of the embedded engine, and of the policy's tokenizer and template. None: SmolLM2-135M-Instruct."""
    policy: str = "policy"
    """The policy that the engine samples."""
    context: Annotated[int, Meta(ge=256)] = 16_384
    """Ids that the embedded engine holds, shared out evenly to its slots."""
    slots: Annotated[int, Meta(ge=1)] = 4
    """Calls that the engine serves at a time."""
    threads: Annotated[int, Meta(ge=1)] = msgspec.field(default_factory=half_of_the_cores)
    """Of the embedded engine."""
    trust_local: bool = False
    """Let harnesses that have tools run as plain processes of this machine: what the model writes then runs with your rights."""

    def __post_init__(self) -> None:
        """Put the state folder in its place, and the home folder."""
        super().__post_init__()
        if self.model is not None:
            structs.force_setattr(self, "model", str(Path(self.model).expanduser().absolute()))
