"""What two gateways must have in common to render the same conversation as the same ids."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from evener.proto.fleet import PolicyFingerprint
from evener.templates.config import PolicyConfig

DIGITS: Final = 16

_settings: Final = msgspec.json.Encoder(order="sorted")


def fingerprint(
    config: PolicyConfig, tokenizer: Tokenizer, template: str, constants: Mapping[str, str], rules: Mapping[str, Any]
) -> PolicyFingerprint:
    """Return the fingerprint of an opened policy. `rules`: what was found out of tokenizer and template, such as the family."""
    chosen = {name: getattr(config, name) for name in ("options", "vision")}
    return PolicyFingerprint(
        policy=config.name,
        tokenizer=_digest(tokenizer.to_str().encode()),
        template=_digest(template.encode()),
        settings=_digest(_settings.encode({**chosen, "constants": dict(constants), "rules": dict(rules)})),
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
