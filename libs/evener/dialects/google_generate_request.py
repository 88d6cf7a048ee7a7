"""Parsing of requests of Google's generateContent and its siblings. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evener.dialects.canonical import CanonicalRequest, Message
from evener.dialects.fields import as_count, as_integer, as_list, as_name, as_number, as_object, as_string, read_field, read_fields, refuse
from evener.dialects.google_generate_items import assembled, camel, parse_item, parse_text, read_object
from evener.dialects.items import Items

MAX_CHOICES: Final = 8
MAX_STOPS: Final = 16
FUNCTIONS: Final = "functionDeclarations"
HOSTED_TOOLS: Final = frozenset(
    {"codeExecution", "enterpriseWebSearch", "fileSearch", "googleMaps", "googleSearch", "googleSearchRetrieval", "mcpServers"}
    | {"retrieval", "urlContext"}
)
"""Tools that the provider runs itself, outside the sandbox. The model is not shown them."""
UNSUPPORTED: Final = {
    "responseSchema": "constrained sampling is not served",
    "responseJsonSchema": "constrained sampling is not served",
    "responseFormat": "constrained sampling is not served",
    "responseLogprobs": "log-probabilities are kept in the log, not sent to the harness",
    "logprobs": "log-probabilities are kept in the log, not sent to the harness",
    "speechConfig": "speech is not served",
    "imageConfig": "images are not made",
}
"""Fields of generationConfig that would change what the answer means. False and empty values ask for nothing."""
NUMBERS: Final = {"temperature": (0, 2), "topP": (0, 1), "presencePenalty": (-2, 2), "frequencyPenalty": (-2, 2)}
INTEGERS: Final = ("topK", "seed")
READ: Final = frozenset({"model", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "generateContentRequest"})
READ_CONFIG: Final = frozenset(
    {"maxOutputTokens", "stopSequences", "candidateCount", "responseMimeType", "responseModalities", *UNSUPPORTED}
)
"""Every other field, of the request or of its generationConfig, is a wish."""


class Offer(Struct, frozen=True, kw_only=True, eq=False):
    """What one entry of `tools` is."""

    functions: tuple[Message, ...]
    hosted: tuple[str, ...]


def parse_request(dialect: str, model: str, body: bytes, *, stream: bool, count_only: bool) -> CanonicalRequest:
    """Return the request in `body`. Raises RequestError naming the field."""
    raw = {camel(name): value for name, value in read_fields(body).items() if bytes(value) != b"null"}
    if count_only and "generateContentRequest" in raw:
        raw = {camel(name): value for name, value in read_fields(bytes(raw["generateContentRequest"])).items() if bytes(value) != b"null"}
    items = _contents.of(raw.pop("contents", b"[]"), "contents") or refuse("contents", "must not be empty")
    offers = _tools.of(raw.pop("tools", b"[]"), "tools")
    fields = {name: read_field(raw, name) for name in raw}
    config = read_object(fields.get("generationConfig", {}), "generationConfig")
    _check_meaning(fields, config)
    wishes = {name: value for name, value in fields.items() if name not in READ}
    wishes |= {name: value for name, value in config.items() if name not in READ_CONFIG}
    if removed := [kind for offer in offers for kind in offer.hosted]:
        wishes["removed_tools"] = removed
    tools = [function for offer in offers for function in offer.functions]
    if _chooses_none(fields.get("toolConfig", {})):
        wishes["tool_choice"], tools = "none", []
    return CanonicalRequest(
        dialect=dialect,
        model=model,
        messages=tuple(_system(fields.get("systemInstruction")) + assembled(items)),
        tools=tuple(tools),
        stream=stream,
        count_only=count_only,
        n=as_count(config.get("candidateCount", 1), "generationConfig.candidateCount", at_most=MAX_CHOICES),
        max_tokens=as_count(config["maxOutputTokens"], "generationConfig.maxOutputTokens") if "maxOutputTokens" in config else None,
        wishes=wishes,
        stop=_stop(config.get("stopSequences", [])),
        images=tuple({image.digest: image for item in items for image in item.images}.values()),
    )


def parse_offer(value: Any, path: str) -> Offer:
    """Return what an entry of `tools` offers. Raises RequestError."""
    entry = read_object(value, path)
    unknown = entry.keys() - HOSTED_TOOLS - {FUNCTIONS}
    if unknown:
        refuse(f"{path}.{min(unknown)}", f"is not served, only {FUNCTIONS}")
    at = f"{path}.{FUNCTIONS}"
    declarations: Sequence[Any] = as_list(entry.get(FUNCTIONS, []), at)
    functions = [_function(read_object(one, f"{at}[{index}]"), f"{at}[{index}]") for index, one in enumerate(declarations)]
    return Offer(functions=tuple(functions), hosted=tuple(sorted(entry.keys() & HOSTED_TOOLS)))


def _function(sent: Message, path: str) -> Message:
    function: Message = {"name": as_name(sent.get("name"), f"{path}.name")}
    if "description" in sent:
        function["description"] = as_string(sent["description"], f"{path}.description")
    if "parametersJsonSchema" in sent:
        function["parameters"] = as_object(sent["parametersJsonSchema"], f"{path}.parametersJsonSchema")
    elif "parameters" in sent:
        function["parameters"] = _json_schema(as_object(sent["parameters"], f"{path}.parameters"))
    return function


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return Google's own kind of schema as JSON Schema: the names of its types are in capitals."""
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


def _check_meaning(fields: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse what would change the meaning of the answer, and mistakes in wishes."""
    if fields.get("cachedContent"):
        refuse("cachedContent", "nothing is cached here; send the contents")
    for name, why in UNSUPPORTED.items():
        if config.get(name):
            refuse(f"generationConfig.{name}", why)
    if config.get("responseMimeType", "text/plain") != "text/plain":
        refuse("generationConfig.responseMimeType", "only text/plain is served: other sampling is constrained; ask for it in the prompt")
    at = "generationConfig.responseModalities"
    if any(kind != "TEXT" for kind in as_list(config.get("responseModalities", []), at)):
        refuse(at, "only TEXT is served")
    for name, (least, most) in NUMBERS.items():
        if name in config:
            as_number(config[name], f"generationConfig.{name}", least=least, most=most)
    for name in INTEGERS:
        if name in config and not (isinstance(config[name], float) and config[name].is_integer()):
            as_integer(config[name], f"generationConfig.{name}")


def _system(value: Any) -> list[Message]:
    text = parse_text(value, "systemInstruction") if value is not None else ""
    return [{"role": "system", "content": text}] if text else []


def _chooses_none(value: Any) -> bool:
    """Tell whether the model is to see no tools. A forced call is constrained sampling."""
    at = "toolConfig.functionCallingConfig"
    calling = read_object(read_object(value, "toolConfig").get("functionCallingConfig", {}), at)
    mode = calling.get("mode", "AUTO")
    if mode not in ("AUTO", "MODE_UNSPECIFIED", "NONE"):
        refuse(f"{at}.mode", "only AUTO and NONE are served: a forced call is constrained sampling")
    return bool(mode == "NONE")


def _stop(value: Any) -> tuple[str, ...]:
    at = "generationConfig.stopSequences"
    texts = as_list(value, at)
    if len(texts) > MAX_STOPS:
        refuse(at, f"at most {MAX_STOPS} strings")
    return tuple(as_name(text, f"{at}[{index}]") for index, text in enumerate(texts))


_contents: Final = Items(parse_item)
_tools: Final = Items(parse_offer)
