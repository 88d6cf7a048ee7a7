"""The renderer port: messages to ids and back, for one policy. The gateway uses it and hands it to `evener.tokens`."""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.proto.errors import EvenerError
from evener.proto.fleet import PolicyFingerprint
from evener.proto.sessions import BridgedBy
from evener.tokens.digests import Message


class TemplateError(EvenerError):
    """The policy's tokenizer or chat template cannot render this. The message names the place."""


class PromptTooLong(TemplateError):
    """The text is longer than any context. Send less of it."""

    def __init__(self, message: str, *, tokens: int | None = None, limit: int | None = None) -> None:
        """`tokens`: how many the text has, and `limit`: how many are served. None: they were not counted."""
        super().__init__(message)
        self.tokens: Final = tokens
        self.limit: Final = limit


class Bridge(Struct, frozen=True, eq=False):
    """Ids that extend a sampled segment, and how they were proven."""

    ids: NDArray[np.int32]
    """int32[G]: the end of the sampled turn if it was not closed, the new messages, and the generation prompt."""
    by: BridgedBy


class Renderer(Protocol):
    """A policy's tokenizer and chat template."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a turn. The first is the template's own; if the template has several, it is the one that ends a tool call."""
        ...

    @property
    def template_name(self) -> str:
        """`own`, the name of a bundled template, or a file's path."""
        ...

    @property
    def fingerprint(self) -> PolicyFingerprint:
        """What decides the ids that it renders."""
        ...

    @property
    def renders_tools(self) -> bool:
        """Whether the prompt shows the tools of a request. If not, the policy never sees them."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> NDArray[np.int32]:
        """Return the ids of the whole history and the generation prompt. Special tokens inside texts are split. Raises TemplateError."""
        ...

    def bridge(
        self, before: Sequence[Message], answer: Message, new: Sequence[Message], tools: Sequence[Message] | None, *, closed: bool
    ) -> Bridge | None:
        """Return the ids that follow the sampled `answer` to `before` when `new` follows, or None if they cannot be proven.

        `closed`: the sampled ids end with an end-of-turn id. Otherwise the bridge begins with one.
        """
        ...

    def parse(self, ids: NDArray[np.int32], *, call_id: str, choice: int, tools: Sequence[Message] | None = None) -> Message:
        """Return the assistant message that sampled ids (without the prompt) spell, with tool-call ids by `evener.proto.ids.tool_call_id`.

        Text that looks like a broken tool call stays text, so that the harness sees what the model wrote. `tools` are those of the call:
        families that spell arguments without quotes need the schemas to tell a number from a text.
        """
        ...

    def certain(self, ids: NDArray[np.int32]) -> tuple[str, str]:
        """Return the (reasoning, content) of an unfinished answer that no later id can change.

        Each is a prefix of what `parse` returns for every continuation of `ids`, and grows with them. Once there is content, the reasoning
        is complete.
        """
        ...

    def reasoning_length(self, ids: NDArray[np.int32]) -> int:
        """Return how many of the sampled ids are reasoning, its delimiters included."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes behind each id, special tokens spelled out."""
        ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text. `special`: special tokens in it are parsed; otherwise they are split into ordinary tokens."""
        ...
