"""Images in requests."""

import base64

import pytest

from evener.dialects.canonical import RequestError
from evener.dialects.images import SLICE_CHARACTERS, read_image


def image(data: str) -> bytes:
    return read_image("image/png", data, type_path="type", data_path="data").data


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, SLICE_CHARACTERS // 4 * 3 - 1, SLICE_CHARACTERS // 4 * 3, SLICE_CHARACTERS // 4 * 3 + 1, SLICE_CHARACTERS * 2]
)
def test_image_is_what_its_base64_stands_for(size: int) -> None:
    """However many slices it is decoded in."""
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)

    assert image(base64.b64encode(content).decode()) == content


@pytest.mark.parametrize(
    "data",
    [
        "A",
        "AAAA" * (SLICE_CHARACTERS // 4) + "A",
        "AAA=" * (SLICE_CHARACTERS // 4) + "AAAA",
        "A" * (SLICE_CHARACTERS - 1) + "=AAAA",
        "AA\nAA",
    ],
)
def test_what_is_no_base64_is_refused(data: str) -> None:
    """A slice that is whole in itself makes no whole of the rest."""
    with pytest.raises(RequestError, match="is not valid base64"):
        image(data)
