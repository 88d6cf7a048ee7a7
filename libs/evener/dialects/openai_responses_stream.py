"""Renders streams of OpenAI Responses. Pure: equal arguments give equal bytes.

No state is kept between two writes, yet `sequence_number` must grow. An event's number is the count of events before it, as if every
character of reasoning and text were a delta of its own. So the number follows from what has left, however that was split. A keep-alive
repeats an event with its number. An error, which ends the stream anywhere, has the highest possible numbers.
"""

from typing import Any, Final

from evener.dialects.canonical import Streamed
from evener.dialects.openai_responses_answer import ARGUMENTS, message_item, reasoning_item, text_part
from evener.dialects.wire import wire_json
from evener.tokens.digests import Message

PROLOGUE_EVENTS: Final = 2
"""The number of events in the prologue."""
BEFORE_DELTAS: Final = 2
"""The number of events before the deltas: an item and its part are added."""
AFTER_DELTAS: Final = 3
"""The number of events after the deltas: the text, its part and the item are done."""


class EventWriter:
    """Writes events one after another, from the current end of a stream."""

    def __init__(self, key: str, streamed: Streamed) -> None:
        self._key = key
        self._reasoning = streamed.reasoning
        self._text = streamed.text
        self._number = PROLOGUE_EVENTS
        self._index = 0
        """The index of the open item, or of the next one."""
        self._out: list[bytes] = []
        if streamed.reasoning:
            self._number += BEFORE_DELTAS + len(streamed.reasoning)
        if streamed.text:
            self._index = 1 if streamed.reasoning else 0
            self._number += AFTER_DELTAS * self._index + BEFORE_DELTAS + len(streamed.text)

    def written(self) -> bytes:
        """Return all events that were written."""
        return b"".join(self._out)

    def write(self, kind: str, *, numbers: int = 1, **fields: Any) -> None:
        """Write an event that counts as `numbers` of them."""
        self._out.append(event(kind, self._number, **fields))
        self._number += numbers

    def add_reasoning(self, more: str) -> None:
        """Write the events that add reasoning."""
        if not more:
            return
        fields = self._reasoning_fields()
        if not self._reasoning:
            self.write("response.output_item.added", output_index=0, item=reasoning_item(self._key, ""))
            self.write("response.reasoning_summary_part.added", **fields, part={"type": "summary_text", "text": ""})
        self.write("response.reasoning_summary_text.delta", numbers=len(more), **fields, delta=more)
        self._reasoning += more

    def add_text(self, more: str) -> None:
        """Write the events that add text, after the end of the reasoning."""
        if not more:
            return
        if not self._text:
            self._open_text()
        self.write("response.output_text.delta", numbers=len(more), **self._text_fields(), delta=more, logprobs=[])
        self._text += more

    def end(self, items: list[Message]) -> None:
        """End the open item, and write the items of which nothing was streamed."""
        message = next((item for item in items if item["type"] == "message"), None)
        if message is None:
            self._end_reasoning()
        else:
            if not self._text:
                self._open_text()
            self._end_text(message)
        for index in range(self._index, len(items)):
            self._call(index, items[index])

    def _open_text(self) -> None:
        self._end_reasoning()
        item = message_item(self._key, self._index, "", status="in_progress")
        self.write("response.output_item.added", output_index=self._index, item=item)
        self.write("response.content_part.added", **self._text_fields(), part=text_part(""))

    def _end_reasoning(self) -> None:
        """End the reasoning if it is open."""
        if not self._reasoning or self._index > 0:
            return
        fields, item = self._reasoning_fields(), reasoning_item(self._key, self._reasoning)
        self.write("response.reasoning_summary_text.done", **fields, text=self._reasoning)
        self.write("response.reasoning_summary_part.done", **fields, part=item["summary"][0])
        self.write("response.output_item.done", output_index=0, item=item)
        self._index = 1

    def _end_text(self, item: Message) -> None:
        fields = self._text_fields()
        self.write("response.output_text.done", **fields, text=self._text, logprobs=[])
        self.write("response.content_part.done", **fields, part=text_part(self._text))
        self.write("response.output_item.done", output_index=self._index, item=item)
        self._index += 1

    def _call(self, index: int, item: Message) -> None:
        field = ARGUMENTS.get(item["type"])
        empty: Message = {"arguments": {}} if field is None else {field: ""}
        self.write("response.output_item.added", output_index=index, item=item | {"status": "in_progress"} | empty)
        if field is not None:
            kind = "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
            fields = {"item_id": item["id"], "output_index": index}
            self.write(f"response.{kind}.delta", **fields, delta=item[field])
            self.write(f"response.{kind}.done", **fields, name=item["name"], **{field: item[field]})
        self.write("response.output_item.done", output_index=index, item=item)

    def _reasoning_fields(self) -> Message:
        return {"item_id": reasoning_item(self._key, "")["id"], "output_index": 0, "summary_index": 0}

    def _text_fields(self) -> Message:
        item = message_item(self._key, self._index, "", status="in_progress")
        return {"item_id": item["id"], "output_index": self._index, "content_index": 0}


def event(kind: str, number: int, **fields: Any) -> bytes:
    """Return one event with its number."""
    return f"event: {kind}\ndata: ".encode() + wire_json({"type": kind, "sequence_number": number, **fields}) + b"\n\n"
