"""What a policy's files give: tokenizer, chat template, special tokens."""

from msgspec import Struct
from tokenizers import Tokenizer


class Source(Struct, frozen=True, kw_only=True, eq=False):
    """A model's own tokenizer and chat template."""

    tokenizer: Tokenizer
    template: str | None
    constants: dict[str, str]
    """What templates see as `bos_token`, `eos_token`, ..."""
    eos_ids: tuple[int, ...]
    """Ids that the model's configuration calls its end."""
