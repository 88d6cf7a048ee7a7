"""Reads the tokenizer and chat template of a GGUF file from its metadata, without torch or a model library.

Format: the GGUF specification, versions 2 and 3 (little-endian). The general reader takes two seconds for 98,000 strings, which a start
must not cost.
"""

import mmap
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from evener.templates.port import TemplateError
from evener.templates.source import ModelSource

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
CONTROL_TOKEN: Final = 3
"""The token type of special tokens."""
SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
SIZE: Final = struct.Struct("<Q")
"""The size of a string, which precedes it."""
SPECIAL_IDS: Final = ("bos", "eos", "unknown", "padding", "eot", "eom")
END_IDS: Final = ("eos", "eot", "eom")


class _Cursor:
    """Reads one value after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self) -> dict[str, Any]:
        if self.take(4) != MAGIC or self.scalar("I") not in VERSIONS:
            msg = "not a GGUF file of version 2 or 3"
            raise ValueError(msg)
        self.scalar("Q")  # number of tensors
        return {self.string(): self.value(self.scalar("I")) for _ in range(self.scalar("Q"))}

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            msg = f"ends within a value of {size} bytes"
            raise ValueError(msg)
        self._at += size
        return taken

    def scalar(self, kind: str) -> Any:
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.scalar(SCALARS[kind])
        of, count = self.scalar("I"), self.scalar("Q")
        if of in SCALARS:
            fmt = f"<{count}{SCALARS[of]}"
            return list(struct.unpack(fmt, self.take(struct.calcsize(fmt))))
        return self.strings(count) if of == STRING else [self.value(of) for _ in range(count)]

    def strings(self, count: int) -> list[str]:
        """Return so many strings. A vocabulary has 50,000 of them and as many merges: a method call for each would take a second."""
        data, at, end, size_at = self._data, self._at, len(self._data), SIZE.unpack_from
        found = []
        for _ in range(count):
            start = at + SIZE.size
            at = start + size_at(data, at)[0]
            if at > end:
                msg = "ends within a string"
                raise ValueError(msg)
            found.append(data[start:at].decode())
        self._at = at
        return found


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the key-value pairs of a GGUF file. Raises TemplateError."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).metadata()
    except (OSError, ValueError, KeyError, RecursionError, struct.error) as cause:
        msg = f"reading {path}: {cause}"
        raise TemplateError(msg) from cause


def load(path: Path) -> ModelSource:
    """Return the tokenizer and chat template of a GGUF file. Raises TemplateError."""
    data = read_metadata(path)
    try:
        tokenizer = _tokenizer(data)
        tokens = data["tokenizer.ggml.tokens"]
        named = {name: data[f"tokenizer.ggml.{name}_token_id"] for name in SPECIAL_IDS if f"tokenizer.ggml.{name}_token_id" in data}
        return ModelSource(
            tokenizer=tokenizer,
            template=data.get("tokenizer.chat_template"),
            constants={f"{name}_token": tokens[named[name]] for name in ("bos", "eos") if name in named},
            eos_ids=tuple(dict.fromkeys(named[name] for name in END_IDS if name in named)),
        )
    except Exception as cause:  # the tokenizer library raises nothing narrower
        msg = f"{path}: its tokenizer cannot be used: {cause}"
        raise TemplateError(msg) from cause


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file. Raises TemplateError."""
    return load(path).tokenizer


def package_file(package: str) -> Path:
    """Return the one GGUF file inside an installed package, without importing it. Raises TemplateError."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    folders = spec.submodule_search_locations if spec else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    if len(files) != 1:
        msg = f"package {package}: {'holds several GGUF files' if files else 'not installed, or without a GGUF file'}"
        raise TemplateError(msg)
    return files[0]


def _tokenizer(data: dict[str, Any]) -> Tokenizer:
    """Return the byte-level BPE tokenizer. The file names its pre-tokenizer only, so only compared names are accepted."""
    model, pre = data["tokenizer.ggml.model"], data["tokenizer.ggml.pre"]
    if (model, pre) != ("gpt2", "smollm"):
        msg = f"tokenizer {model}/{pre} is not known; use hf:FOLDER with the model's tokenizer.json"
        raise ValueError(msg)
    tokens, kinds = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in data["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
