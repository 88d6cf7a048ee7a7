"""The bytes behind each id of a byte-level tokenizer."""

import codecs
from collections.abc import Iterable
from typing import Final

from tokenizers import Tokenizer, decoders

from evener.templates.port import TemplateError

_Decoder: Final = codecs.getincrementaldecoder("utf-8")


class TokenBytes:
    """A cache of the bytes behind ids, for byte-level tokenizers only. Raises TemplateError for others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            msg = "only byte-level tokenizers are supported"
            raise TemplateError(msg)
        self._tokenizer = tokenizer
        self._known = {id_: token.content.encode() for id_, token in tokenizer.get_added_tokens_decoder().items()}
        self._byte_of = _byte_letters()

    def of(self, ids: Iterable[int]) -> list[bytes]:
        """Return the bytes of each id, special tokens spelled out. An id that the tokenizer does not know (padding) has none."""
        known = self._known
        return [known[id_] if id_ in known else self._ordinary(id_) for id_ in ids]

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.of(ids)).decode("utf-8", "replace")

    def certain_text(self, ids: Iterable[int]) -> str:
        """Return the text of ids without a last character that more bytes could complete or spoil."""
        return _Decoder("replace").decode(b"".join(self.of(ids)))

    def ends(self, ids: Iterable[int]) -> list[int]:
        """Return the number of characters in the text up to and including each id."""
        decoder, length, ends = _Decoder("replace"), 0, []
        for piece in self.of(ids):
            length += len(decoder.decode(piece))
            ends.append(length)
        return ends

    def _ordinary(self, id_: int) -> bytes:
        token = self._tokenizer.id_to_token(id_)
        piece = b"" if token is None else bytes(self._byte_of[letter] for letter in token)
        if token is not None:
            self._known[id_] = piece
        return piece


def _byte_letters() -> dict[str, int]:
    """Return the character that byte-level BPE writes for each byte. Source: GPT-2's bytes_to_unicode.

    Printable Latin-1 characters stand for themselves; the characters from U+0100 on stand for the other bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
