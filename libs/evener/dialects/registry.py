"""The registry of dialects. A new dialect is a module that implements `canonical.Dialect`, and one entry here."""

from typing import Final

from evener.dialects import anthropic_messages_request, google_generate_request, openai_chat_request, openai_responses_request
from evener.dialects.anthropic_messages import AnthropicMessages
from evener.dialects.canonical import Dialect
from evener.dialects.google_generate import GoogleGenerate
from evener.dialects.openai_chat import OpenAIChat
from evener.dialects.openai_responses import OpenAIResponses
from evener.dialects.openai_responses_tools import TOOL
from evener.dialects.rules import Rules

DIALECTS: Final[tuple[Dialect, ...]] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), GoogleGenerate())
RULES: Final[dict[str, tuple[Rules, ...]]] = {
    "OpenAI Chat Completions": (openai_chat_request.RULES, openai_chat_request.TOOL),
    "OpenAI Responses": (openai_responses_request.RULES, TOOL),
    "Anthropic Messages": (anthropic_messages_request.RULES, anthropic_messages_request.TOOL),
    "Google generateContent": (google_generate_request.RULES, google_generate_request.CONFIG, google_generate_request.TOOL),
}
"""What happens to the fields of requests, by the name of the provider's API. docs/reference/dialects.md is generated from these rules."""


def dialect_for(path: str) -> Dialect | None:
    """Return the dialect that asks for answers at this path, which may have a query. None: no dialect does."""
    return next((dialect for dialect in DIALECTS if dialect.serves(path)), None)
