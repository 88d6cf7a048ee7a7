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


def provider(context: LaunchContext, *, dialect: str, reasoning: bool, context_tokens: int, answer_tokens: int) -> dict[str, object]:
    """Return the relay as a provider of one model. `reasoning`: the model is declared to reason."""
    api, suffix = APIS[dialect]
    model = {
        "id": context.model,
        "name": context.model,
        "reasoning": reasoning,
        "input": ["text"],
        "contextWindow": context_tokens,
        "maxTokens": answer_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    return {"baseUrl": f"{context.base_url}{suffix}", "api": api, "apiKey": context.key, "models": [model]}
