"""The environment variables by which programs find a model provider, for the usual client of every dialect."""

from typing import Final

CONTRARY: Final = ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY")
"""Variables that a client reads beside or before those below. With both set it warns, or sends a key that is not the relay's."""


def variables(base_url: str, key: str, model: str) -> dict[str, str]:
    """Return the environment that points a program at the relay. `base_url` has no `/v1`."""
    return {
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_BASE": f"{base_url}/v1",
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_MODEL": model,
        "GOOGLE_GEMINI_BASE_URL": base_url,
        "GEMINI_API_KEY": key,
        "GEMINI_MODEL": model,
    }
