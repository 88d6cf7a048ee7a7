"""Structs that are made of others."""

from msgspec import Struct

from evener.proto.fields import shared_fields


class Source(Struct):
    name: str
    size: int
    secret: str = ""


class View(Struct, kw_only=True):
    name: str
    size: int
    ready: bool


def test_fields_that_both_have_are_copied_and_no_others() -> None:
    """What a view lacks stays out of it, and what only the view has must be given."""
    source = Source("one", 3, "hidden")

    assert shared_fields(source, View) == {"name": "one", "size": 3}
    assert View(**shared_fields(source, View), ready=True) == View(name="one", size=3, ready=True)
