"""The bytes that each id of a byte-level tokenizer stands for."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders

from evener.templates.port import TemplateError


class Pieces:
    """Ids to bytes. Only for byte-level tokenizers; raises TemplateError for others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            msg = "only byte-level tokenizers are supported"
            raise TemplateError(msg)
        self._tokenizer = tokenizer
        self._added = {id_: token.content.encode() for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self._byte_of = _byte_letters()

    def of(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each id, special tokens spelled out. An id that the tokenizer does not know (padding) has none."""
        return [self._added[id_] if id_ in self._added else self._ordinary(id_) for id_ in ids]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.of(ids)).decode("utf-8", "replace")

    def _ordinary(self, id_: int) -> bytes:
        token = self._tokenizer.id_to_token(id_)
        return b"" if token is None else bytes(self._byte_of[letter] for letter in token)


def _byte_letters() -> dict[str, int]:
    """Return the letter that byte-level BPE writes for each byte. Source: GPT-2's bytes_to_unicode.

    Printable Latin-1 stands for itself; the other bytes, in order, for the letters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
