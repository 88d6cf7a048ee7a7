"""Digests of canonical values. Equal messages have equal digests, whatever the order of their keys. Pure."""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from evener.proto.spec import PolicyOptions

Message = dict[str, Any]
"""A canonical message (`evener.dialects.canonical`): role, content, and for assistants reasoning and tool_calls."""
Digest = bytes

KEY_FIELD: Final = "key"
"""The field of an assistant message that names a sampled answer. It is not part of the message's content."""

_encoder: Final = msgspec.json.Encoder(order="deterministic")


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys. 1, 1.0 and true stay different."""
    return _encoder.encode(value)


def message_digest(message: Message) -> Digest:
    """Return the digest of a canonical message, without its answer key."""
    return hashlib.blake2b(_encoder.encode(said(message)), digest_size=16).digest()


def start_digest(tools: Sequence[Message], options: PolicyOptions) -> Digest:
    """Return the digest of how histories begin: the tools in their order, and the policy's rendering options."""
    return hashlib.blake2b(_encoder.encode((list(tools), options)), digest_size=16).digest()


def said(message: Message) -> Message:
    """Return the message without its answer key."""
    return message if KEY_FIELD not in message else {name: value for name, value in message.items() if name != KEY_FIELD}
