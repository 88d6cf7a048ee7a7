"""The relay as a model provider in the configuration format of Pi and OpenClaw, for each dialect that they speak."""

from collections.abc import Mapping
from typing import Final

from evener.harnesses.port import LaunchContext

APIS: Final[Mapping[str, tuple[str, str]]] = {
    "chat": ("openai-completions", "/v1"),
    "responses": ("openai-responses", "/v1"),
    "anthropic": ("anthropic-messages", ""),
    "google": ("google-generative-ai", "/v1beta"),
}
"""By dialect: the name of its client, and the path after the relay's address in its base URL."""


def provider(context: LaunchContext, *, context_tokens: int, answer_tokens: int, kept_free_tokens: int = 0) -> dict[str, object]:
    """Return the relay as a provider of one model, as the options say: `dialect`, `reasoning`, `context_tokens`, `answer_tokens`.

    The arguments are the limits without options, and what is added to the context.
    """
    options = context.options
    api, suffix = APIS[options.get("dialect", "chat")]
    model = {
        "id": context.model,
        "name": context.model,
        "reasoning": options.get("reasoning") == "true",
        "input": ["text"],
        "contextWindow": int(options.get("context_tokens", context_tokens)) + kept_free_tokens,
        "maxTokens": int(options.get("answer_tokens", context.answer_tokens or answer_tokens)),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    return {"baseUrl": f"{context.base_url}{suffix}", "api": api, "apiKey": context.key, "models": [model]}
