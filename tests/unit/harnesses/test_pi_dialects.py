"""Pi's and OpenClaw's provider: one model at the relay, in each dialect that they speak."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from evener.harnesses.port import HarnessError, LaunchContext
from evener.harnesses.registry import harness

URL = "http://127.0.0.1:1"
PLACES = {"pi": "/home/agent/.pi/agent/models.json", "openclaw": "/home/agent/.openclaw/openclaw.json"}


def provider(name: str, **options: str) -> dict[str, Any]:
    """Return the provider that a launch with these options is told."""
    context = LaunchContext(instruction="Do it.", base_url=URL, key="k", model="m", workdir="/x/app", home="/x/home/agent", options=options)
    config = msgspec.json.decode(harness(name).launch(context, Path()).files[PLACES[name]])
    found: dict[str, Any] = config.get("models", config)["providers"]["evener"]
    return found


@pytest.mark.parametrize(
    ("name", "options", "api", "base_url"),
    [
        ("pi", {}, "openai-completions", f"{URL}/v1"),
        ("pi", {"dialect": "responses"}, "openai-responses", f"{URL}/v1"),
        ("pi", {"dialect": "anthropic"}, "anthropic-messages", URL),
        ("pi", {"dialect": "google"}, "google-generative-ai", f"{URL}/v1beta"),
        ("openclaw", {}, "openai-completions", f"{URL}/v1"),
        ("openclaw", {"dialect": "responses"}, "openai-responses", f"{URL}/v1"),
        ("openclaw", {"dialect": "anthropic"}, "anthropic-messages", URL),
    ],
)
def test_each_dialect_has_its_client_and_its_base_url(name: str, options: dict[str, str], api: str, base_url: str) -> None:
    """Clients differ in what they put after the base URL."""
    told = provider(name, **options)

    assert (told["api"], told["baseUrl"], told["apiKey"]) == (api, base_url, "k")
    assert [model["id"] for model in told["models"]] == ["m"]


def test_a_model_reasons_only_where_an_option_says_so() -> None:
    """What is known of the model changes what is asked of it."""
    assert [provider(name)["models"][0]["reasoning"] for name in PLACES] == [False, False]
    assert [provider(name, reasoning="true")["models"][0]["reasoning"] for name in PLACES] == [True, True]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pi", {"dialect": "gopher"}, "is 'gopher', not one of chat, responses, anthropic, google"),
        ("pi", {"reasoning": "yes"}, "is 'yes', not one of false, true"),
        ("openclaw", {"dialect": "google"}, "is 'google', not one of chat, responses, anthropic"),
        ("openclaw", {"answer_tokens": "few"}, "is 'few', not a number"),
        ("hermes", {"tools": "bash"}, "no option 'tools' .it has: toolsets, context_tokens, answer_tokens"),
        ("openhands", {"context_tokens": "-1"}, "is '-1', not a number"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, str], message: str) -> None:
    """Before anything is installed or started."""
    with pytest.raises(HarnessError, match=message):
        harness(name).check(options)
