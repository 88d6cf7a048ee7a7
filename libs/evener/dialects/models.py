"""Answers clients that ask which models there are, in the form of their provider. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec

PATH: Final = re.compile(r"^(?:/api)?(?:/(?P<version>v1|v1beta))?/models(?:/(?P<model>.+))?/?$")
ANTHROPIC_HEADER: Final = "anthropic-version"
GOOGLE_HEADER: Final = "x-goog-api-key"
NO_TIME: Final = "1970-01-01T00:00:00Z"


def models_answer(path: str, headers: Mapping[str, str], names: Sequence[str]) -> bytes | None:
    """Return the list of models, or the model that the path names, in the caller's dialect. None: the path asks for neither.

    A model that is not in the list is returned too: the run's model map decides about it when it is called.
    """
    found = PATH.match(path.partition("?")[0])
    if found is None:
        return None
    model = unquote(found["model"]).strip("/") if found["model"] else None
    if found["version"] == "v1beta" or GOOGLE_HEADER in headers:
        return _answer(model, names, _google, lambda models: {"models": models})
    if ANTHROPIC_HEADER in headers:
        return _answer(model, names, _anthropic, _anthropic_page)
    return _answer(model, names, _openai, lambda models: {"object": "list", "data": models})


def _answer(model: str | None, names: Sequence[str], one: Any, page: Any) -> bytes:
    return msgspec.json.encode(page([one(name) for name in names]) if model is None else one(model))


def _openai(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "evener"}


def _anthropic(name: str) -> dict[str, Any]:
    return {"type": "model", "id": name, "display_name": name, "created_at": NO_TIME}


def _anthropic_page(models: list[dict[str, Any]]) -> dict[str, Any]:
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
    return {"data": models, "has_more": False, **ends}


def _google(name: str) -> dict[str, Any]:
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
