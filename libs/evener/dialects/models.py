"""Answers clients that ask which models there are, in the form of their provider. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Struct

MODELS_PATH: Final = re.compile(r"^(?:/api)?(?:/(?P<version>v1|v1beta))?/models(?:/(?P<model>.+))?/?$")
NO_TIME: Final = "1970-01-01T00:00:00Z"


class ModelList(Struct, frozen=True, kw_only=True):
    """The form in which a provider lists its models."""

    one: Callable[[str], dict[str, Any]]
    """Describes the model of a name."""
    page: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Makes the list of such descriptions."""
    header: str | None = None
    """A header, in lower case, that only requests of this provider's clients have. None: the form of all others."""
    version: str | None = None
    """A version in the path that only this provider has."""

    def is_asked(self, version: str | None, headers: Mapping[str, str]) -> bool:
        """Return whether a request with this version in its path is one of the provider's clients."""
        return self.header in headers or (version is not None and version == self.version)


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


OPENAI_MODELS: Final = ModelList(one=_openai, page=lambda models: {"object": "list", "data": models})
ANTHROPIC_MODELS: Final = ModelList(one=_anthropic, page=_anthropic_page, header="anthropic-version")
GOOGLE_MODELS: Final = ModelList(one=_google, page=lambda models: {"models": models}, header="x-goog-api-key", version="v1beta")


def answer_models(path: str, headers: Mapping[str, str], names: Sequence[str], lists: Iterable[ModelList]) -> bytes | None:
    """Return the list of models, or the model that the path names, in the form that the request asks for. None: it asks for neither."""
    found = MODELS_PATH.match(path.partition("?")[0])
    if found is None:
        return None
    asked = next((form for form in lists if form.is_asked(found["version"], headers)), OPENAI_MODELS)
    model = unquote(found["model"]).strip("/") if found["model"] else None
    return msgspec.json.encode(asked.page([asked.one(name) for name in names]) if model is None else asked.one(model))
