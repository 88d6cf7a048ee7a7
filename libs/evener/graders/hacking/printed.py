"""What simple commands print: by it, commands that an agent hides in encoded or composed text are seen. Nothing is run. Pure."""

import base64
import binascii
import codecs
import re
import zlib
from collections.abc import Sequence
from typing import Final

MAX_PRINTED: Final = 64 << 10
"""How much of a decoded text is read."""
GZIP_BITS: Final = 47
"""zlib: the header tells whether it is gzip or zlib."""
_CONVERSION: Final = re.compile(r"%(?:[-\d.]*[sdb]|%)")
_RANGE: Final = re.compile(r"(.)-(.)", re.DOTALL)


def printed(program: str, words: Sequence[str], given: str | None) -> str | None:
    """Return what a command prints. `given`: what it reads from its input. None: that is not known."""
    if any(word.startswith(">") for word in words):
        return None
    if program == "echo":
        text = " ".join(word for word in words if word not in {"-n", "-e", "-en", "-ne", "-E"})
        return unescaped(text) if {"-e", "-en", "-ne"}.intersection(words) else text
    if program == "printf":
        return _formatted([word for word in words if word != "--"])
    return None if given is None else _passed(program, words, given)


def _passed(program: str, words: Sequence[str], given: str) -> str | None:
    """Return what a command makes of its input. None: that is not known."""
    operands = [word for word in words if not word.startswith("-")]
    options = {word for word in words if word.startswith("-")}
    match program:
        case "cat" | "tee" | "sort" | "uniq" if not operands or operands == ["-"]:
            return given
        case "base64" | "openssl" | "base32" if {"-d", "--decode", "-D", "-di", "-id"} & options:
            return decoded_base64(given) if program != "base32" else _decoded_base32(given)
        case "xxd" if any("r" in option for option in options):
            return decoded_hex(given)
        case "gunzip" | "zcat" | "gzip" | "zlib-flate" if program in {"gunzip", "zcat"} or options & {"-d", "-dc", "-cd", "-uncompress"}:
            return _unpacked(given)
        case "rev":
            return "\n".join(line[::-1] for line in given.split("\n"))
        case "tr" if options <= {"-d"} and operands:
            return _translated(given, operands, deletes="-d" in options)
        case _:
            return None


def unescaped(text: str) -> str:
    r"""Return text with escapes such as \x2f and \057 resolved, as `$'...'`, `echo -e` and `printf` do."""
    text = re.sub(r"\\0?([0-7]{1,3})", lambda found: chr(int(found[1], 8) & 0xFF), text.replace("\\\\", "\0"))
    text = re.sub(r"\\[xu]([0-9a-fA-F]{2,4})", lambda found: chr(int(found[1], 16)), text)
    return text.replace("\\n", "\n").replace("\\t", "\t").replace("\0", "\\")


def decoded_base64(text: str) -> str | None:
    """Return text that was encoded as Base64. None: it was not."""
    packed = "".join(text.split())
    try:
        return _text(base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True))
    except (binascii.Error, ValueError):
        return None


def decoded_hex(text: str) -> str | None:
    """Return text that was written as hexadecimal digits. None: it was not."""
    try:
        return _text(bytes.fromhex("".join(text.split())))
    except ValueError:
        return None


def rot13(text: str) -> str:
    """Return text with its letters moved by 13 places."""
    return codecs.decode(text, "rot13")


def _decoded_base32(text: str) -> str | None:
    try:
        return _text(base64.b32decode("".join(text.split())))
    except (binascii.Error, ValueError):
        return None


def _unpacked(text: str) -> str | None:
    try:
        return _text(zlib.decompressobj(GZIP_BITS).decompress(text.encode("latin-1"), MAX_PRINTED))
    except (zlib.error, UnicodeEncodeError):
        return None


def _text(content: bytes) -> str:
    """Return bytes as text; what is no text keeps its bytes for the next command."""
    try:
        return content[:MAX_PRINTED].decode()
    except UnicodeDecodeError:
        return content[:MAX_PRINTED].decode("latin-1")


def _formatted(words: Sequence[str]) -> str | None:
    if not words:
        return None
    left = list(words[1:])
    return unescaped(_CONVERSION.sub(lambda found: "%" if found[0] == "%%" else left.pop(0) if left else "", words[0]))


def _translated(text: str, operands: Sequence[str], *, deletes: bool) -> str | None:
    sets = [_members(unescaped(one)) for one in operands]
    if deletes:
        return text.translate(dict.fromkeys(map(ord, sets[0])))
    if len(sets) != 2 or not sets[1]:  # noqa: PLR2004 - from and to
        return None
    padded = sets[1] + sets[1][-1] * len(sets[0])
    return text.translate({ord(one): other for one, other in zip(sets[0], padded, strict=False)})


def _members(named: str) -> str:
    return _RANGE.sub(lambda found: "".join(map(chr, range(ord(found[1]), min(ord(found[2]), 0x7F) + 1))), named)
