"""What clients are told that ask which models there are: each in the shape that its own provider has."""

import json
from typing import Any

import pytest

from evener.dialects.registry import models_answer

NAMES = ("policy", "judge")


def told(path: str, **headers: str) -> Any:
    answer = models_answer(path, {name.replace("_", "-"): value for name, value in headers.items()}, NAMES)
    return None if answer is None else json.loads(answer)


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/api/v1/models", "/v1/models/", "/v1/models?limit=1000"])
def test_openai_clients_get_a_list(path: str) -> None:
    assert [model["id"] for model in told(path)["data"]] == list(NAMES)


def test_anthropic_clients_get_a_page() -> None:
    page = told("/v1/models", anthropic_version="2023-06-01")
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("policy", "judge", False)
    assert page["data"][0]["type"] == "model"


@pytest.mark.parametrize(("path", "headers"), [("/v1beta/models", {}), ("/models", {"x_goog_api_key": "k"})])
def test_google_clients_get_resource_names(path: str, headers: dict[str, str]) -> None:
    assert [model["name"] for model in told(path, **headers)["models"]] == ["models/policy", "models/judge"]


def test_one_model_is_told_also_one_that_is_not_listed() -> None:
    """Whether it is served is decided when it is called."""
    assert told("/v1/models/policy")["id"] == "policy"
    assert told("/v1/models/anything")["id"] == "anything"
    assert told("/v1beta/models/policy")["name"] == "models/policy"


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/v2/models", "/models-of/v1"])
def test_other_paths_are_none_of_its_business(path: str) -> None:
    assert told(path) is None
