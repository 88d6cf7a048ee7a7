"""The dialects that are served."""

from typing import Final

from evener.dialects.anthropic_messages import AnthropicMessages
from evener.dialects.canonical import Dialect
from evener.dialects.google_generate import GoogleGenerate
from evener.dialects.openai_chat import OpenAIChat
from evener.dialects.openai_responses import OpenAIResponses

DIALECTS: Final[tuple[Dialect, ...]] = (OpenAIChat(), OpenAIResponses(), AnthropicMessages(), GoogleGenerate())


def dialect_for(path: str) -> Dialect | None:
    """Return the dialect that asks for answers at this path (with any query), or None."""
    return next((dialect for dialect in DIALECTS if dialect.serves(path)), None)
