"""The registry of dialects, in one table. A new dialect is a module that implements `canonical.Dialect`, and one entry here."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from evener.dialects import anthropic_messages_request, google_generate_request, openai_chat_request, openai_responses_request
from evener.dialects.anthropic_messages import AnthropicMessages
from evener.dialects.canonical import Dialect
from evener.dialects.google_generate import GoogleGenerate
from evener.dialects.models import ANTHROPIC_MODELS, GOOGLE_MODELS, OPENAI_MODELS, ModelList, answer_models
from evener.dialects.openai_chat import OpenAIChat
from evener.dialects.openai_responses import OpenAIResponses
from evener.dialects.openai_responses_tools import TOOL
from evener.dialects.rules import Rules


class DialectEntry(Struct, frozen=True, kw_only=True):
    """A dialect, and what belongs to its provider."""

    dialect: Dialect
    api: str
    """The name of the provider's API, for people."""
    rules: tuple[Rules, ...]
    """What happens to the fields of requests. docs/reference/dialects.md is generated from these rules."""
    variables: Mapping[str, str] = {}
    """The environment variables by which programs find the provider, with `{base_url}` (no `/v1`), `{key}` and `{model}`."""
    unset: tuple[str, ...] = ()
    """Variables that clients read beside or before those. With both set they warn, or send a key that is not the relay's."""
    models: ModelList = OPENAI_MODELS
    """The form of the provider's list of models."""


ENTRIES: Final = (
    DialectEntry(
        dialect=OpenAIChat(),
        api="OpenAI Chat Completions",
        rules=(openai_chat_request.RULES, openai_chat_request.TOOL),
        variables={
            "OPENAI_BASE_URL": "{base_url}/v1",
            "OPENAI_API_BASE": "{base_url}/v1",
            "OPENAI_API_KEY": "{key}",
            "OPENAI_MODEL": "{model}",
        },
    ),
    DialectEntry(dialect=OpenAIResponses(), api="OpenAI Responses", rules=(openai_responses_request.RULES, TOOL)),
    DialectEntry(
        dialect=AnthropicMessages(),
        api="Anthropic Messages",
        rules=(anthropic_messages_request.RULES, anthropic_messages_request.TOOL),
        variables={"ANTHROPIC_BASE_URL": "{base_url}", "ANTHROPIC_API_KEY": "{key}", "ANTHROPIC_MODEL": "{model}"},
        unset=("ANTHROPIC_AUTH_TOKEN",),
        models=ANTHROPIC_MODELS,
    ),
    DialectEntry(
        dialect=GoogleGenerate(),
        api="Google generateContent",
        rules=(google_generate_request.RULES, google_generate_request.GENERATION_CONFIG, google_generate_request.TOOL),
        variables={"GOOGLE_GEMINI_BASE_URL": "{base_url}", "GEMINI_API_KEY": "{key}", "GEMINI_MODEL": "{model}"},
        unset=("GOOGLE_API_KEY",),
        models=GOOGLE_MODELS,
    ),
)
DIALECTS: Final = tuple(entry.dialect for entry in ENTRIES)
UNSET: Final = tuple(name for entry in ENTRIES for name in entry.unset)
"""The variables that a program at the relay must not have."""


def dialect_for(path: str) -> Dialect | None:
    """Return the dialect that asks for answers at this path, which may have a query. None: no dialect does."""
    return next((dialect for dialect in DIALECTS if dialect.serves(path)), None)


def variables(base_url: str, key: str, model: str) -> dict[str, str]:
    """Return the environment that points a program at the relay, whatever its dialect. `base_url` has no `/v1`."""
    return {name: value.format(base_url=base_url, key=key, model=model) for entry in ENTRIES for name, value in entry.variables.items()}


def models_answer(path: str, headers: Mapping[str, str], names: Sequence[str]) -> bytes | None:
    """Return the list of models, or the model that the path names, in the caller's dialect. None: the path asks for neither.

    A model that is not in the list is returned too: the run's model map decides about it when it is called.
    """
    return answer_models(path, headers, names, [entry.models for entry in ENTRIES])
