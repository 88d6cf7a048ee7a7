"""The configuration of graders: of the evaluator, which runs them."""

from typing import Annotated

from msgspec import Meta, Struct


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that graders may ask. Tasks name it; only the operator says where it is and with which key it is asked."""

    url: str
    """For the grader `http`, where to POST; for `judge`, the base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`."""
    model: str = ""
    """The model of a judge."""
    key_file: str | None = None
    """The file of the bearer token. None: the server needs none."""
    seconds: Annotated[float, Meta(gt=0)] = 120.0
    """The time limit of a request."""
