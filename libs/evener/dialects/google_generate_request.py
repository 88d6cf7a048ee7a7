"""Parses requests of Google's generateContent and its siblings. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.fields import as_count, as_list, as_object, malformed, read_field, read_fields, read_json, refuse
from evener.dialects.google_generate_items import assembled, camel, parse_item, parse_text, read_object, read_objects
from evener.dialects.images import images_of
from evener.dialects.items import Items
from evener.dialects.offered import as_function
from evener.dialects.rules import CONSTRAINED, LOGPROBS, NEW_TURN, Only, Rules, beside
from evener.tokens.digests import Message

MAX_CHOICES: Final = 8
FUNCTION_DECLARATIONS: Final = "functionDeclarations"
NESTED: Final = "generateContentRequest"
"""The field in which a request that only counts tokens may hold the whole request."""
HOSTED_TOOLS: Final = frozenset(
    {"codeExecution", "enterpriseWebSearch", "fileSearch", "googleMaps", "googleSearch", "googleSearchRetrieval", "mcpServers"}
    | {"retrieval", "urlContext"}
)
"""Tools that the provider runs itself, outside the sandbox. The model does not see them."""
RULES: Final = Rules(
    obeyed={
        "model": "the path says it, and the run's model map says who answers",
        "contents": "a list or one; roles user, model and function; text, thoughts, images as `inlineData`, calls and their results; "
        + NEW_TURN,
        "systemInstruction": "text, as parts, one part, or a plain text",
        "tools": f"a list or one; `{FUNCTION_DECLARATIONS}`; hosted tools are removed, other kinds refused",
        "toolConfig": "modes `AUTO` and `NONE`; a forced call, or `allowedFunctionNames`, is refused: it is constrained sampling. "
        "Anything else in it is recorded",
        "generationConfig": "below; numbers may be written as text",
    },
    recorded={"safetySettings": "nothing is filtered"},
    refused={"cachedContent": "nothing is cached here; send the contents"},
)
GENERATION_CONFIG: Final = Rules(
    at="generationConfig",
    obeyed={"candidateCount": f"up to {MAX_CHOICES}", "responseModalities": "`TEXT`; others are refused"},
    limits=("maxOutputTokens",),
    bounds={"temperature": (0, 2), "topP": (0, 1), "presencePenalty": (-2, 2), "frequencyPenalty": (-2, 2)},
    integers=frozenset({"topK", "seed"}),
    recorded={"thinkingConfig": "how the policy reasons is set by the run"},
    refused={
        "responseSchema": CONSTRAINED,
        "responseJsonSchema": CONSTRAINED,
        "responseFormat": CONSTRAINED,
        "responseLogprobs": LOGPROBS,
        "logprobs": LOGPROBS,
        "speechConfig": "speech is not served",
        "imageConfig": "images are not made",
    },
    only={"responseMimeType": Only("text/plain", "only text/plain is served: other sampling is constrained; ask for it in the prompt")},
    stops="stopSequences",
)
NUMBERS: Final = GENERATION_CONFIG.bounds.keys() | GENERATION_CONFIG.integers | {*GENERATION_CONFIG.limits, "candidateCount"}
TOOL: Final = Rules(
    at=f"tools[].{FUNCTION_DECLARATIONS}[]",
    obeyed=dict.fromkeys(("name", "description", "parameters", "parametersJsonSchema"), "shown to the policy, as JSON Schema"),
    recorded={"response": "what a function gives back is not shown to the policy"},
)


class Offer(Struct, frozen=True, kw_only=True, eq=False):
    """The parsed form of one entry of `tools`."""

    functions: tuple[Message, ...]
    hosted: tuple[str, ...]
    beside: Mapping[str, Mapping[str, Any]]
    """What was dropped from each function, by its name."""


def parse_request(dialect: str, model: str, body: bytes, *, stream: bool, count_only: bool) -> CanonicalRequest:
    """Return the request in `body`. Raises RequestError naming the field."""
    raw = {camel(name): value for name, value in read_fields(body).items() if bytes(value) != b"null"}
    if count_only and NESTED in raw:
        raw = {camel(name): value for name, value in read_fields(bytes(raw[NESTED])).items() if bytes(value) != b"null"}
    items = _contents.of(_listed(raw.pop("contents", b"[]")), "contents") or malformed("contents", "must not be empty")
    offers = _tools.of(_listed(raw.pop("tools", b"[]")), "tools")
    fields = {name: read_field(raw, name) for name in raw}
    config = _numbers(read_object(fields.get("generationConfig", {}), "generationConfig"))
    requested_params = RULES.requested_params(fields) | GENERATION_CONFIG.requested_params(config, count_only=count_only)
    _check_modalities(config)
    if removed := [kind for offer in offers for kind in offer.hosted]:
        requested_params["removed_tools"] = removed
    if besides := {name: more for offer in offers for name, more in offer.beside.items()}:
        requested_params["tools"] = besides
    tools = [function for offer in offers for function in offer.functions]
    if _chooses_none(fields.get("toolConfig", {}), requested_params):
        requested_params["tool_choice"], tools = "none", []
    return CanonicalRequest(
        dialect=dialect,
        model=model,
        messages=tuple(_system(fields.get("systemInstruction")) + assembled(items)),
        tools=tuple(tools),
        stream=stream,
        count_only=count_only,
        n=as_count(config.get("candidateCount", 1), "generationConfig.candidateCount", at_most=MAX_CHOICES),
        max_tokens=GENERATION_CONFIG.limit(config),
        requested_params=requested_params,
        images=images_of((item.images for item in items), "contents"),
    )


def parse_offer(value: Any, path: str) -> Offer:
    """Parse an entry of `tools`. Raises RequestError."""
    entry = read_object(value, path)
    unknown = entry.keys() - HOSTED_TOOLS - {FUNCTION_DECLARATIONS}
    if unknown:
        refuse(f"{path}.{min(unknown)}", f"is not served, only {FUNCTION_DECLARATIONS}")
    declared = read_objects(entry.get(FUNCTION_DECLARATIONS, []), f"{path}.{FUNCTION_DECLARATIONS}")
    functions = [_function(one, at) for one, at in declared]
    besides = {one["name"]: more for one, _ in declared if (more := beside(one, TOOL.obeyed))}
    return Offer(functions=tuple(functions), hosted=tuple(sorted(entry.keys() & HOSTED_TOOLS)), beside=besides)


def _function(sent: Message, path: str) -> Message:
    function = as_function(sent, path, schema="parametersJsonSchema")
    if "parametersJsonSchema" not in sent and "parameters" in sent:
        function["parameters"] = _json_schema(as_object(sent["parameters"], f"{path}.parameters"))
    return function


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return Google's variant of a schema as JSON Schema. Its type names are in capitals."""
    converted = dict(schema)
    if isinstance(kind := schema.get("type"), str):
        converted["type"] = kind.lower()
    if isinstance(properties := schema.get("properties"), dict):
        converted["properties"] = {name: _json_schema(one) if isinstance(one, dict) else one for name, one in properties.items()}
    if isinstance(items := schema.get("items"), dict):
        converted["items"] = _json_schema(items)
    for name in {"anyOf", "any_of"} & schema.keys():
        if isinstance(schema[name], list):
            converted[name] = [_json_schema(one) if isinstance(one, dict) else one for one in schema[name]]
    return converted


def _listed(raw: bytes | msgspec.Raw) -> bytes:
    """Return a raw list: a single object becomes the only item of one."""
    one = bytes(raw)
    return b"[%b]" % one if one.lstrip()[:1] == b"{" else one


def _numbers(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with its numbers as numbers: JSON of protocol buffers may write them as text."""
    return {name: _number(value) if name in NUMBERS and isinstance(value, str) else value for name, value in config.items()}


def _number(text: str) -> Any:
    """Return the number in a text, or the text if it holds none, which is refused like any other."""
    try:
        number = read_json(text)
    except ValueError:
        return text
    return number if isinstance(number, int | float) and not isinstance(number, bool) else text


def _check_modalities(config: dict[str, Any]) -> None:
    at = "generationConfig.responseModalities"
    if any(kind != "TEXT" for kind in as_list(config.get("responseModalities", []), at)):
        refuse(at, "only TEXT is served")


def _system(value: Any) -> list[Message]:
    text = parse_text(value, "systemInstruction") if value is not None else ""
    return [{"role": "system", "content": text}] if text else []


def _chooses_none(value: Any, requested_params: dict[str, Any]) -> bool:
    """Return whether the model is to see no tools. A forced or narrowed choice is refused: it is constrained sampling."""
    at = "toolConfig.functionCallingConfig"
    config = read_object(value, "toolConfig")
    calling = read_object(config.get("functionCallingConfig", {}), at)
    if calling.get("allowedFunctionNames"):
        refuse(f"{at}.allowedFunctionNames", "is not served: a narrowed choice is constrained sampling; leave out the other tools")
    if more := beside(config, ("functionCallingConfig",)) | beside(calling, ("mode",)):
        requested_params["toolConfig"] = more
    mode = calling.get("mode", "AUTO")
    if mode not in ("AUTO", "MODE_UNSPECIFIED", "NONE"):
        refuse(f"{at}.mode", "only AUTO and NONE are served: a forced call is constrained sampling")
    return bool(mode == "NONE")


_contents: Final = Items(parse_item)
_tools: Final = Items(parse_offer)
