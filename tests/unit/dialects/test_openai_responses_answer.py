"""Answers on the wire: golden bytes, streams cut anywhere, what comes back, and what the official client makes of all that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sdks import openai
from tests.support.server_sent_events import events_in
from tests.unit.dialects.arbitrary import HEAD

from evener.dialects.canonical import NOTHING_STREAMED, AnswerChoice, CanonicalAnswer, CanonicalRequest, RequestError, Streamed, head_of
from evener.dialects.openai_responses import OpenAIResponses
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message

RESPONSES = OpenAIResponses()
OBJECT = {"type": "object", "properties": {}}
ASKED: dict[str, Any] = {
    "model": "policy",
    "input": [{"role": "user", "content": "hi"}],
    "tools": [
        {"type": "function", "name": "f", "parameters": OBJECT},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}, {"type": "custom", "name": "run"}]},
        {"type": "tool_search", "execution": "client", "parameters": OBJECT},
    ],
}
SAYING: Message = {"role": "assistant", "content": "On it é.\n", "reasoning": "Hm 😀."}
CALLING: Message = SAYING | {
    "tool_calls": [
        {"id": "callc1x0x0", "name": "f", "arguments": {"b": 1.0, "a": ["é"]}},
        {"id": "callc1x0x1", "name": "n__g", "arguments": "{broken"},
        {"id": "callc1x0x2", "name": "patch", "arguments": {"input": "*** Begin"}},
        {"id": "callc1x0x3", "name": "n__run", "arguments": {"other": 1}},
        {"id": "callc1x0x4", "name": "tool_search", "arguments": {"query": "x"}},
    ],
}


def asked(**more: Any) -> CanonicalRequest:
    return RESPONSES.parse("/v1/responses", json.dumps(ASKED | more).encode())


def answer(message: Message, finish: FinishReason = FinishReason.STOP, *, key: str = "c1x0") -> CanonicalAnswer:
    return CanonicalAnswer(
        answer_id="a1",
        created=1700000000,
        model="policy",
        choices=[AnswerChoice(message=message, finish_reason=finish, key=key)],
        prompt_tokens=10,
        cached_tokens=3,
        completion_tokens=5,
        reasoning_tokens=2,
    )


def stream(given: CanonicalAnswer) -> bytes:
    head = head_of(given)
    return RESPONSES.prologue(head) + RESPONSES.keep_alive(head) + RESPONSES.events(asked(), given)


def events_of(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; each says its type twice."""
    events = events_in(body)
    assert [event.type for event in events] == [event.value()["type"] for event in events]
    return [event.value() for event in events]


def whole(given: CanonicalAnswer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(RESPONSES.answer(asked(), given))
    return body


def test_whole_answer_byte_by_byte() -> None:
    assert RESPONSES.answer(asked(), answer(CALLING)).decode() == (
        '{"id":"resp_a1","object":"response","created_at":1700000000,"status":"completed","background":false,"error":null,'
        '"incomplete_details":null,"instructions":null,"max_output_tokens":null,"model":"policy","output":['
        '{"id":"rs_c1x0_0","type":"reasoning","summary":[{"type":"summary_text","text":"Hm 😀."}],"encrypted_content":"c1x0"},'
        '{"id":"msg_c1x0_1","type":"message","status":"completed","role":"assistant","content":['
        '{"type":"output_text","text":"On it é.\\n","annotations":[],"logprobs":[]}]},'
        '{"id":"fc_c1x0_2","type":"function_call","status":"completed","call_id":"call_c1x0x0","name":"f",'
        '"arguments":"{\\"b\\": 1.0, \\"a\\": [\\"é\\"]}"},'
        '{"id":"fc_c1x0_3","type":"function_call","status":"completed","call_id":"call_c1x0x1","name":"g","namespace":"n",'
        '"arguments":"{broken"},'
        '{"id":"ctc_c1x0_4","type":"custom_tool_call","status":"completed","call_id":"call_c1x0x2","name":"patch","input":"*** Begin"},'
        '{"id":"ctc_c1x0_5j","type":"custom_tool_call","status":"completed","call_id":"call_c1x0x3","name":"run","namespace":"n",'
        '"input":"{\\"other\\": 1}"},'
        '{"id":"tsc_c1x0_6","type":"tool_search_call","status":"completed","call_id":"call_c1x0x4","execution":"client",'
        '"arguments":{"query":"x"}}],'
        '"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},"store":false,'
        '"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"truncation":"disabled","usage":{"input_tokens":10,'
        '"input_tokens_details":{"cached_tokens":3},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},'
        '"total_tokens":15},"metadata":{}}'
    )


def test_streamed_answer_byte_by_byte() -> None:
    """Everything between the prologue and the response that ends it."""
    message = SAYING | {"content": "Ok.", "reasoning": "Hm.", "tool_calls": CALLING["tool_calls"][:1]}
    head, given = head_of(answer(message)), answer(message)
    response = whole(given)
    begun = json.dumps(response | {"status": "in_progress", "output": [], "usage": None}, separators=(",", ":"))
    ended = RESPONSES.answer(asked(), given).decode()
    reasoning, text, call = (json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in response["output"])
    summary = '"item_id":"rs_c1x0_0","output_index":0,"summary_index":0'
    content = '"item_id":"msg_c1x0_1","output_index":1,"content_index":0'
    arguments = '"{\\"b\\": 1.0, \\"a\\": [\\"é\\"]}"'
    expected = [
        ("response.created", 0, f'"response":{begun}'),
        ("response.in_progress", 1, f'"response":{begun}'),
        (
            "response.output_item.added",
            2,
            '"output_index":0,"item":{"id":"rs_c1x0_0","type":"reasoning","summary":[],"encrypted_content":"c1x0"}',
        ),
        ("response.reasoning_summary_part.added", 3, summary + ',"part":{"type":"summary_text","text":""}'),
        ("response.reasoning_summary_text.delta", 4, summary + ',"delta":"Hm."'),
        ("response.reasoning_summary_text.done", 7, summary + ',"text":"Hm."'),
        ("response.reasoning_summary_part.done", 8, summary + ',"part":{"type":"summary_text","text":"Hm."}'),
        ("response.output_item.done", 9, f'"output_index":0,"item":{reasoning}'),
        (
            "response.output_item.added",
            10,
            '"output_index":1,"item":{"id":"msg_c1x0_1","type":"message","status":"in_progress","role":"assistant","content":[]}',
        ),
        ("response.content_part.added", 11, content + ',"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}'),
        ("response.output_text.delta", 12, content + ',"delta":"Ok.","logprobs":[]'),
        ("response.output_text.done", 15, content + ',"text":"Ok.","logprobs":[]'),
        ("response.content_part.done", 16, content + ',"part":{"type":"output_text","text":"Ok.","annotations":[],"logprobs":[]}'),
        ("response.output_item.done", 17, f'"output_index":1,"item":{text}'),
        (
            "response.output_item.added",
            18,
            (
                '"output_index":2,"item":{"id":"fc_c1x0_2","type":"function_call","status":"in_progress","call_id":"call_c1x0x0",'
                '"name":"f","arguments":""}'
            ),
        ),
        ("response.function_call_arguments.delta", 19, f'"item_id":"fc_c1x0_2","output_index":2,"delta":{arguments}'),
        ("response.function_call_arguments.done", 20, f'"item_id":"fc_c1x0_2","output_index":2,"name":"f","arguments":{arguments}'),
        ("response.output_item.done", 21, f'"output_index":2,"item":{call}'),
        ("response.completed", 22, f'"response":{ended}'),
    ]
    written = "".join(f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},{rest}}}\n\n' for kind, number, rest in expected)
    assert (RESPONSES.prologue(head) + RESPONSES.events(asked(), given)).decode() == written


def test_a_keep_alive_repeats_an_event() -> None:
    """A client that drops what it has seen drops it."""
    head = head_of(answer(SAYING))
    assert RESPONSES.prologue(head).endswith(RESPONSES.keep_alive(head))


@pytest.mark.parametrize(
    ("finish", "message", "status", "item"),
    [
        (FinishReason.STOP, SAYING, "completed", "completed"),
        (FinishReason.STOP, CALLING, "completed", "completed"),
        (FinishReason.LENGTH, SAYING, "incomplete", "incomplete"),
        (FinishReason.LENGTH, CALLING, "incomplete", "completed"),
        (FinishReason.ABORTED, SAYING, "incomplete", "incomplete"),
    ],
)
def test_what_was_cut_off_is_incomplete(finish: FinishReason, message: Message, status: str, item: str) -> None:
    body = whole(answer(message, finish))
    assert (body["status"], body["output"][1]["status"]) == (status, item)
    assert body["incomplete_details"] == (None if status == "completed" else {"reason": "max_output_tokens"})
    assert events_of(stream(answer(message, finish)))[-1]["type"] == f"response.{status}"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": ""}, {"role": "assistant", "content": "", "reasoning": "Hm."}])
def test_an_answer_of_nothing_is_an_empty_message(message: Message) -> None:
    """So that the harness has something to send back."""
    given = answer(message)
    assert whole(given)["output"][-1]["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
    assert_well_formed(stream(given), given)


def assert_well_formed(body: bytes, given: CanonicalAnswer) -> None:
    """What is added is done, deltas sum up to what is done, numbers grow, and the end says all items."""
    events = events_of(body)
    numbers = [event["sequence_number"] for at, event in enumerate(events) if event["type"] != "response.in_progress" or at == 1]
    assert numbers == sorted(set(numbers))
    deltas: dict[tuple[str, str], str] = {}
    opened: dict[tuple[str, str], bool] = {}
    done: list[dict[str, Any]] = []
    for event in events:
        kind, _, what = event["type"].removeprefix("response.").rpartition(".")
        place = (kind, event.get("item_id") or event.get("item", {}).get("id", ""))
        if what == "added":
            assert opened.setdefault(place, True)
        elif what == "delta":
            deltas[place] = deltas.get(place, "") + event["delta"]
        elif what == "done":
            said = next((event[name] for name in ("text", "arguments", "input") if name in event), None)
            assert said is None or said == deltas.get(place, "")
            if kind.endswith(("item", "part")):
                assert opened.pop(place)
            if kind == "output_item":
                assert event["output_index"] == len(done)
                done.append(event["item"])
    assert not opened
    assert events[-1]["response"]["output"] == done == whole(given)["output"]


@pytest.mark.parametrize("message", [SAYING, CALLING, {"role": "assistant", "content": "abc"}, CALLING | {"content": ""}])
def test_a_stream_may_be_cut_into_deltas_anywhere(message: Message) -> None:
    """Every pair of cuts: what left, what leaves now, what is left for the end. The numbers of the end are always the same."""
    given = answer(message)
    head, request = head_of(given), asked()
    reasoning, text = message.get("reasoning", ""), message["content"]
    ends = set()
    for first, second in cuts(len(reasoning) + len(text)):
        one, two = (Streamed(reasoning=reasoning[:at], text=text[: max(0, at - len(reasoning))]) for at in (first, second))
        body = RESPONSES.prologue(head)
        body += RESPONSES.delta(head, "c1x0", NOTHING_STREAMED, reasoning=one.reasoning, text=one.text)
        body += RESPONSES.keep_alive(head)
        body += RESPONSES.delta(head, "c1x0", one, reasoning=two.reasoning[len(one.reasoning) :], text=two.text[len(one.text) :])
        body += RESPONSES.events(request, given, two)
        assert_well_formed(body, given)
        ends.add(events_of(body)[-1]["sequence_number"])
    assert len(ends) == 1


def cuts(length: int) -> Iterator[tuple[int, int]]:
    return ((first, second) for second in range(length + 1) for first in range(second + 1))


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.sampled_from(["f", "n__g", "patch", "n__run", "tool_search", "unheard_of", "n__unheard_of"])
VALUES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
ARGUMENTS = st.dictionaries(TEXT | st.just("input"), VALUES, max_size=3) | TEXT.filter(lambda text: not text.lstrip().startswith("{"))
CALLS = st.lists(
    st.fixed_dictionaries({"id": st.from_regex(r"call[0-9a-z]{1,8}", fullmatch=True), "name": NAMES, "arguments": ARGUMENTS}), max_size=4
)


@settings(max_examples=300)
@given(TEXT, TEXT, CALLS, st.from_regex(r"[a-z0-9]{1,30}", fullmatch=True), st.booleans())
def test_an_answer_sent_back_is_understood_as_it_was_sent(text: str, reasoning: str, calls: list[Message], key: str, stop: bool) -> None:  # noqa: FBT001 - drawn
    """The next request of a harness that keeps everything: equal to what was sampled, and known by its key."""
    message: Message = {"role": "assistant", "content": text}
    message |= ({"reasoning": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})
    given = answer(message, FinishReason.STOP if stop else FinishReason.LENGTH, key=key)
    items = whole(given)["output"]
    assert_well_formed(stream(given), given)
    for returned in (items, [{name: value for name, value in item.items() if name != "encrypted_content"} for item in items]):
        again = asked(input=[*ASKED["input"], *returned, {"role": "user", "content": "go on"}])
        assert again.messages[1:-1] == (message | {"key": key},)


CODES = [
    (RequestError("m", kind="context_length_exceeded"), "context_length_exceeded"),
    (RequestError("m", status=503, kind="overloaded_error"), "rate_limit_exceeded"),
    (RequestError("m", status=429, kind="rate_limit_error"), "rate_limit_exceeded"),
    (RequestError("m", status=502, kind="server_error"), "server_error"),
    (RequestError("m", status=504, kind="timeout_error"), "server_error"),
    (RequestError("m", status=400, kind="session_ended"), "invalid_prompt"),
    (RequestError("m", status=401, kind="server_error"), "invalid_prompt"),
]


@pytest.mark.parametrize(("error", "code"), CODES)
def test_a_failed_stream_says_whether_to_try_again(error: RequestError, code: str) -> None:
    """By the codes that Codex reads from `response.failed`; the `error` event is for clients that raise."""
    failed, told = events_of(RESPONSES.stream_error(HEAD, error))
    assert (failed["type"], failed["response"]["status"], failed["response"]["error"]) == (
        "response.failed",
        "failed",
        {"code": code, "message": "m"},
    )
    assert (failed["response"]["id"], failed["response"]["model"]) == ("resp_a1", "policy")
    assert (told["type"], told["code"], told["error"]["message"]) == ("error", code, "m")
    assert failed["sequence_number"] < told["sequence_number"]


def test_errors_have_the_official_shape() -> None:
    error = RequestError("input[0].role: is wrong", field="input[0].role")
    body = b'{"error":{"message":"input[0].role: is wrong","type":"invalid_request_error","param":"input[0].role","code":null}}'
    assert RESPONSES.error(error) == body

    overflow = json.loads(RESPONSES.error(RequestError("too long", kind="context_length_exceeded")))["error"]
    assert (overflow["type"], overflow["code"]) == ("invalid_request_error", "context_length_exceeded")


def client(status: int, body: bytes, kind: str) -> openai.OpenAI:
    """The official client, answered with these bytes."""
    handler: Callable[[httpx2.Request], httpx2.Response] = lambda _: httpx2.Response(status, content=body, headers={"content-type": kind})  # noqa: E731
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    return openai.OpenAI(base_url="http://localhost/v1", api_key="k", http_client=http, max_retries=0)


def assert_understood(response: Any) -> None:
    """Every item, as the official client types it."""
    kinds = ["reasoning", "message", "function_call", "function_call", "custom_tool_call", "custom_tool_call", "tool_search_call"]
    assert [item.type for item in response.output] == kinds
    reasoning, _, first, second, third, _, last = response.output
    assert (reasoning.summary[0].text, reasoning.encrypted_content, response.output_text) == ("Hm 😀.", "c1x0", "On it é.\n")
    assert (first.arguments, second.arguments, second.namespace) == ('{"b": 1.0, "a": ["é"]}', "{broken", "n")
    assert (third.input, last.arguments) == ("*** Begin", {"query": "x"})
    assert (response.usage.input_tokens_details.cached_tokens, response.usage.output_tokens_details.reasoning_tokens) == (3, 2)


def test_official_client_reads_a_whole_answer() -> None:
    with client(200, RESPONSES.answer(asked(), answer(CALLING)), "application/json") as official:
        assert_understood(official.responses.create(model="policy", input="hi"))


def test_official_client_assembles_a_stream() -> None:
    with (
        client(200, stream(answer(CALLING)), "text/event-stream") as official,
        official.responses.stream(model="policy", input="hi") as events,
    ):
        seen = list(events)
        assert_understood(events.get_final_response())

    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "On it é.\n"


def test_official_client_reads_an_incomplete_stream() -> None:
    with client(200, stream(answer(SAYING, FinishReason.LENGTH)), "text/event-stream") as official:
        last = list(official.responses.create(model="policy", input="hi", stream=True))[-1]

    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_official_client_counts() -> None:
    with client(200, RESPONSES.counted(7), "application/json") as official:
        assert official.responses.input_tokens.count(model="policy", input="hi").input_tokens == 7


def test_official_client_raises_our_errors() -> None:
    error = RequestError("model: must not be empty", field="model")
    with client(400, RESPONSES.error(error), "application/json") as official, pytest.raises(openai.BadRequestError) as refused:
        official.responses.create(model="policy", input="hi")
    assert refused.value.param == "model"

    body = RESPONSES.prologue(head_of(answer(SAYING))) + RESPONSES.stream_error(HEAD, RequestError("gone", kind="api_error", status=500))
    with client(200, body, "text/event-stream") as official, pytest.raises(openai.APIError, match="gone") as raised:
        list(official.responses.create(model="policy", input="hi", stream=True))
    assert raised.value.code == "server_error"
