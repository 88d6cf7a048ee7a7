"""Folders of weights, as small as the format allows."""

import json
import struct
from pathlib import Path

import numpy as np


def save_weights(folder: Path, seed: int, *, width: int = 4, tied: bool = False) -> Path:
    """Write a folder of two tensors; another seed gives other weights of the same shapes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    tensors = {name: np.random.default_rng(seed).normal(size=(2, width)).astype("<f4") for name in ("embed", "head")}
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder
