"""Checks a folder of weights without loading it: that it is whole, that its shapes are right, and which weights it holds.

The format is safetensors (8 bytes little-endian length N, N bytes of JSON, data). An engine may die of a folder that it cannot load.
"""

import hashlib
import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from evener.proto.errors import EvenerError

CONFIG_FILE: Final = "config.json"
PATTERN: Final = "*.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 100_000_000
SHOWN_TENSORS: Final = 3
"""How many tensors an error names."""


class WeightsRefused(EvenerError):
    """Save the whole model as Hugging Face does (config.json and *.safetensors), into a new folder for each version."""


class Tensor(Struct, frozen=True):
    """An entry of a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class ModelConfig(Struct, frozen=True):
    """The fields of config.json that are read."""

    tie_word_embeddings: bool = False


class Index(Struct, frozen=True):
    """The fields that are read of the index of a model in several files."""

    weight_map: dict[str, str]


_configs: Final = msgspec.json.Decoder(ModelConfig)
_indexes: Final = msgspec.json.Decoder(Index)
_headers: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensors: Final = msgspec.json.Decoder(Tensor)


class Weights(NamedTuple):
    """The weights in a folder that can be loaded."""

    digest: str
    """The SHA-256 of the names and contents of its weights, independent of the folder."""
    shapes: dict[str, tuple[int, ...]]
    """The shape of each tensor, by its name."""
    tied: bool
    """Whether the output matrix is the embedding matrix."""


def read_weights(folder: Path, *, digest: str | None = None) -> Weights:
    """Read and check a folder. Blocks: every byte is read, unless `digest` is known. Raises WeightsRefused naming what is wrong."""
    try:
        return _read(folder, digest)
    except OSError as cause:
        msg = f"{cause.filename or folder}: {cause.strerror or cause}"
        raise WeightsRefused(msg) from cause
    except msgspec.MsgspecError as cause:
        msg = f"{folder}: {cause}"
        raise WeightsRefused(msg) from cause


def check_same_model(weights: Weights, before: Weights) -> None:
    """Raise WeightsRefused if an engine that holds `before` cannot load these weights."""
    missing, added = sorted(before.shapes.keys() - weights.shapes.keys()), sorted(weights.shapes.keys() - before.shapes.keys())
    reshaped = sorted(name for name in weights.shapes.keys() & before.shapes.keys() if weights.shapes[name] != before.shapes[name])
    for what, names in (("lacks", missing), ("adds", added), ("changes the shape of", reshaped)):
        if names:
            more = f" and {len(names) - SHOWN_TENSORS} more" if len(names) > SHOWN_TENSORS else ""
            msg = f"the folder {what} {', '.join(names[:SHOWN_TENSORS])}{more}, against the version that the engines have"
            raise WeightsRefused(msg)


def _read(folder: Path, known: str | None) -> Weights:
    config = _configs.decode((folder / CONFIG_FILE).read_bytes())
    files = sorted(folder.glob(PATTERN))
    if not files:
        msg = f"{folder} has no {PATTERN}"
        raise WeightsRefused(msg)
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= _shapes(file)
    index = folder / INDEX
    if index.exists():
        listed = _indexes.decode(index.read_bytes()).weight_map
        if absent := sorted(listed.keys() - shapes.keys()):
            msg = f"{folder}: {INDEX} lists {absent[0]}, which no file holds"
            raise WeightsRefused(msg)
    return Weights(known or _digest(files), shapes, config.tie_word_embeddings)


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes in a file's header, after checking that the file is as long as the header says."""
    size = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES + 1  # noqa: PLR2004 (the format's)
        if length > MAX_HEADER_BYTES:
            msg = f"{file} is not a safetensors file"
            raise WeightsRefused(msg)
        header = _headers.decode(content.read(length))
    tensors = {name: _tensors.decode(raw) for name, raw in header.items() if name != "__metadata__"}
    end = 8 + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if size != end:
        msg = f"{file} has {size} bytes, its header tells of {end}: it is incomplete"
        raise WeightsRefused(msg)
    return {name: tensor.shape for name, tensor in tensors.items()}
