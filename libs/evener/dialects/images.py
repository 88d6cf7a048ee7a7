"""Reads images in requests. Pure."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from evener.dialects.canonical import Image
from evener.dialects.fields import as_string, malformed, refuse
from evener.tokens.digests import Message

MEDIA_TYPE: Final = re.compile(r"image/[a-z0-9.+-]+")
SLICE_CHARACTERS: Final = 1 << 20
"""A number of characters, a multiple of four."""
DATA_URL: Final = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def read_image(media_type: Any, data: Any, *, type_path: str, data_path: str) -> Image:
    """Return an image that was sent as base64 text. Raises RequestError."""
    kind = as_string(media_type, type_path)
    if not MEDIA_TYPE.fullmatch(kind):
        refuse(type_path, f"{kind!r} is not an image type; only images are served")
    try:
        content = _decoded(as_string(data, data_path))
    except (binascii.Error, ValueError):
        malformed(data_path, "is not valid base64")
    return Image(digest=hashlib.sha256(content).hexdigest(), media_type=kind, data=content, path=data_path)


def _decoded(data: str) -> bytes:
    """Return decoded base64 text. It is decoded in slices, because a large one at once would block all threads. Raises ValueError."""
    starts = range(0, len(data), SLICE_CHARACTERS)
    if len(starts) > 1 and data.find("=", 0, starts[-1]) >= 0:
        msg = "padding before the end"
        raise ValueError(msg)
    return b"".join([base64.b64decode(data[low : low + SLICE_CHARACTERS], validate=True) for low in starts])


def image_part(image: Image) -> Message:
    """Return the canonical part that refers to an image."""
    return {"type": "image", "digest": image.digest, "media_type": image.media_type}


def image_at(value: Any, path: str) -> Image:
    """Return the image of a data URL. Raises RequestError."""
    found = DATA_URL.fullmatch(as_string(value, path)) or refuse(path, "only data URLs with base64 images are served, nothing is fetched")
    return read_image(found[1], found[2], type_path=path, data_path=path)


def images_within(images: Iterable[Image], path: str) -> tuple[Image, ...]:
    """Return the images of the item at `path` with their paths inside the item, which may come back anywhere."""
    return tuple(replace(image, path=image.path.removeprefix(path)) for image in images)


def images_of(items: Iterable[Iterable[Image]], path: str) -> tuple[Image, ...]:
    """Return the images of a request from those of the items in its list at `path`: each once, with its first path."""
    found: dict[str, Image] = {}
    for index, images in enumerate(items):
        for image in images:
            if image.digest not in found:
                found[image.digest] = replace(image, path=f"{path}[{index}]{image.path}")
    return tuple(found.values())
