"""The contents of a policy's files: tokenizer, chat template, special tokens."""

from msgspec import Struct
from tokenizers import Tokenizer


class ModelSource(Struct, frozen=True, kw_only=True, eq=False):
    """A model's own tokenizer and chat template."""

    tokenizer: Tokenizer
    template: str | None
    constants: dict[str, str]
    """The variables that templates see as `bos_token`, `eos_token`, ..."""
    eos_ids: tuple[int, ...]
    """The end-of-sequence ids in the model's configuration."""
