"""make drift: how many sampled tokens would be wrong if the history were tokenized again, and how many are wrong here.

SmolLM2 samples really, at three temperatures, in conversations: its answers come back as a harness sends them (through our dialect,
printed as JavaScript prints JSON) and are rendered again with the whole history. The same texts, in the tokens of other families and
with tool calls as models write them (`drift_spelling`), go the same way through those families' real tokenizers, templates and parsers.

An answer that came back is aligned with what was sampled; the sampled ids without a counterpart are wrong, at least one where the two
differ at all. Everything that the session sampled after it was sampled in another context.
Here: the same sessions through placing, recording and rebuilding; a trained token is wrong if it, or anything before it in its row,
is not what the ledger says the engine was given and sampled (where texts are only retold: what it would have been given).
"""

import asyncio
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import numpy as np
from msgspec import Struct, structs
from proofs.bench.drift_spelling import FAMILIES, TOOLS, VARIANTS, Sampled, Variant, arguments, sampled_text
from proofs.bench.families import policies
from proofs.bench.sessions import CHAT, ChatSession
from proofs.figures import Row, report, show

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, CanonicalRequest
from evener.engines.embedded import start_embedded
from evener.engines.llama import LlamaEngine
from evener.engines.port import GenerateRequest
from evener.proto.arrays import int32s, uint8s
from evener.proto.sessions import FinishReason
from evener.proto.spec import Quirks, Sampling, Tolerance
from evener.templates.open import open_renderer
from evener.templates.port import Renderer
from evener.tokens.forest import Ids

TEMPERATURES: Final = (0.7, 1.0, 1.5)
SESSIONS, ANSWERS, MAX_TOKENS = 6, 6, 48
"""The number of sessions at each temperature, of answers in each session, and the most tokens of an answer."""
SEED: Final = 7
QUIRKS: Final = Quirks(tolerances=(Tolerance.NUMBERS_LOOSE,))
"""The changes that any JavaScript client makes to a history."""
ASKED: Final = (
    "Tell me about a naïve café owner in Zürich.",
    "List five numbers between 1000 and 99999, and say why.",
    "Write a Python function that counts the words of a file.",
    "What is the weather like on Mars in 2031?",
    "Invent an unusual surname and spell it.",
    "Explain `git rebase --onto` to a baker.",
)
ON: Final = ("Go on.", "Give an example.", "Say that again in other words.", "Are you sure?", "Why?", "Sum it up.")


SAMPLED: Final = "SmolLM2"
"""The family that really samples."""


class Drift(Struct, kw_only=True):
    """What happened to sampled tokens that came back as text."""

    tokens: int = 0
    wrong_by_retokenising: int = 0
    wrong_here: int = 0
    answers: int = 0
    answers_changed: int = 0
    sessions: int = 0
    sessions_changed: int = 0
    later: int = 0
    """Tokens sampled after the first change in their session: in another context than the one that is rendered for them."""


Found = tuple[str, float, str, Drift]
"""Family, temperature, how tool calls are written, and what happened."""


class Conversation(ChatSession):
    """A session whose harness sends back what it was answered, and whose engine has a ledger."""

    def __init__(self, renderer: Renderer, session_id: str, asked: str, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(renderer, session_id, QUIRKS)
        self.tools = tools
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": asked}]
        self.ledger: dict[str, tuple[Ids, Ids]] = {}
        """The ids that the engine was given, and those that it sampled, by call."""
        self.drift = Drift(sessions=1)

    def asks(self) -> CanonicalRequest:
        """Return the harness's request."""
        return self.parse(json.dumps({"model": "policy", "messages": self.messages, "tools": list(self.tools)}).encode())

    def answered(self, fed: Ids, ids: Ids, finish: FinishReason, following: str) -> None:
        """Take the ids sampled on `fed` for the last request; the harness continues. Count how they change in a new rendering."""
        request = self.asks()
        message = self.commit(request, self.place_request(request), ids, finish)
        self.ledger[f"c{len(self.ledger) + 1}"] = fed, ids
        choice = AnswerChoice(message=message, finish_reason=finish, key="k")
        answer = CanonicalAnswer(
            answer_id="a", created=1, model="policy", choices=[choice], prompt_tokens=0, cached_tokens=None, completion_tokens=0
        )
        returned = json.loads(CHAT.answer(request, answer))["choices"][0]["message"]
        for call in returned.get("tool_calls") or ():
            call["function"]["arguments"] = as_javascript(json.loads(call["function"]["arguments"]))
        self.messages.append(returned)
        calls = returned.get("tool_calls") or ()
        self.messages += [{"role": "tool", "tool_call_id": call["id"], "content": following} for call in calls]
        if not calls:
            self.messages.append({"role": "user", "content": following})
        self._compare(self.renderer.render(request.messages, request.tools or None), ids)

    def _compare(self, prompt: Ids, ids: Ids) -> None:
        request, drift = self.asks(), self.drift
        wrong = wrong_tokens(prompt, ids, self.renderer.render(request.messages, request.tools or None), self.renderer.stop_ids)
        drift.later += len(ids) if drift.sessions_changed else 0
        drift.tokens += len(ids)
        drift.answers += 1
        drift.wrong_by_retokenising += wrong
        drift.answers_changed += wrong > 0
        drift.sessions_changed |= wrong > 0

    def sealed(self) -> Drift:
        """End the session; count what is wrong in its rows."""
        trajectory = self.seal()
        trained: set[str] = set()
        for row in trajectory.rows:
            ids, mask, call_of = int32s(row.ids), uint8s(row.loss_mask), int32s(row.call_of)
            for number, call_id in enumerate(row.calls):
                at = np.flatnonzero(call_of == number)
                if mask[at].any():
                    fed, sampled = self.ledger[call_id]
                    same = np.array_equal(ids[: at[0]], fed) and np.array_equal(ids[at], sampled) and bool(mask[at].all())
                    self.drift.wrong_here += 0 if same else len(sampled)
                    trained.add(call_id)
        self.drift.wrong_here += sum(len(sampled) for call_id, (_, sampled) in self.ledger.items() if call_id not in trained)
        return self.drift


def wrong_tokens(prompt: Ids, sampled: Ids, again: Ids, stop_ids: Sequence[int]) -> int:
    """Return how many sampled ids differ in a new rendering of prompt, answer and what follows."""
    start = common(prompt, again)
    ends = np.flatnonzero(np.isin(again[start:], stop_ids))
    end = start + int(ends[0]) + (sampled[-1] in stop_ids) if len(ends) else len(again)
    written = again[start:end]
    if np.array_equal(written, sampled):
        return 0
    blocks = SequenceMatcher(None, sampled.tolist(), written.tolist(), autojunk=False).get_matching_blocks()
    return max(len(sampled) - sum(block.size for block in blocks), 1)


def common(first: Ids, second: Ids) -> int:
    """Return the length of the common beginning."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size


def as_javascript(value: Any) -> str:
    """Return JSON as JSON.stringify prints it: no spaces, whole numbers without a fraction."""
    return json.dumps(_whole(value), ensure_ascii=False, separators=(",", ":"))


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def converse(engine: LlamaEngine, renderer: Renderer, number: int, temperature: float) -> Conversation:
    """Let the real engine sample a whole conversation, each answer on the ids that placing gives."""
    talk = Conversation(renderer, f"smollm2.{temperature}.{number}", ASKED[number % len(ASKED)])
    for turn in range(ANSWERS):
        asked = GenerateRequest(
            request_id=f"{talk.session.session_id}.{turn}",
            ids=talk.place_request(talk.asks()).context,
            sampling=Sampling(temperature=temperature, seed=SEED * 1000 + number * 10 + turn),
            max_tokens=MAX_TOKENS,
            stop_ids=renderer.stop_ids,
        )
        chunks = [chunk async for chunk in engine.generate(asked)]
        finish = chunks[-1].finish_reason or FinishReason.STOP
        talk.answered(asked.ids, np.concatenate([chunk.ids for chunk in chunks]), finish, ON[(number + turn) % len(ON)])
    return talk


async def sample(renderer: Renderer) -> dict[float, list[Conversation]]:
    """Return real conversations by temperature."""
    process = await start_embedded(None)
    engine = LlamaEngine(process.url)
    try:
        return {
            temperature: await asyncio.gather(*(converse(engine, renderer, number, temperature) for number in range(SESSIONS)))
            for temperature in TEMPERATURES
        }
    finally:
        await engine.aclose()
        await process.stop()


def spelled(title: str, renderer: Renderer, number: int, texts: Sequence[Sampled], variants: Sequence[Variant]) -> Conversation:
    """Play a conversation with tools, given the texts that its policy says."""
    family, chance = FAMILIES[title], random.Random(SEED + number)  # noqa: S311 - seeded
    talk = Conversation(renderer, f"{title}.{number}", ASKED[number % len(ASKED)], TOOLS)
    for turn, text in enumerate(texts):
        call = family.call(arguments(chance), variants[(number + turn) % len(variants)])
        says, calls = (True, True) if family.together else (turn % 2 == 1, turn % 2 == 0)
        ids = family.spell(renderer, text if says else None, call if calls else None)
        talk.answered(talk.place_request(talk.asks()).context, ids, FinishReason.STOP, "Done: 12 lines." if calls else ON[turn % len(ON)])
    return talk


def one_call(title: str, renderer: Renderer, variant: Variant) -> str:
    """Return what becomes of one tool call without a text."""
    talk = Conversation(renderer, f"{title}.{variant}", ASKED[0], TOOLS)
    family = FAMILIES[title]
    said = Sampled("I write it.", ()) if family.opens or family.shuts else None
    ids = family.spell(renderer, said, family.call(arguments(random.Random(SEED)), variant))  # noqa: S311 - seeded
    talk.answered(talk.place_request(talk.asks()).context, ids, FinishReason.STOP, "Done.")
    if "tool_calls" not in talk.messages[2]:
        msg = f"{title} does not read its own call: {talk.messages[2]}"
        raise RuntimeError(msg)
    wrong = talk.drift.wrong_by_retokenising
    return f"{wrong} of {len(ids)}" if wrong else "survives"


def total(drifts: Sequence[Drift]) -> Drift:
    """Return the sums."""
    return Drift(**{field: sum(getattr(one, field) for one in drifts) for field in Drift.__struct_fields__})


def row(title: str, temperature: float, calls: str, drift: Drift) -> Row:
    """Return a line of the table."""
    return {
        "family": title,
        "temperature": temperature,
        "calls": calls,
        "tokens": drift.tokens,
        "wrong": drift.wrong_by_retokenising,
        "%": 100 * drift.wrong_by_retokenising / drift.tokens,
        "in_another_context": drift.later,
        "answers_changed": f"{drift.answers_changed} of {drift.answers}",
        "sessions": f"{drift.sessions_changed} of {drift.sessions}",
        "wrong_here": drift.wrong_here,
    }


def retold(renderers: Mapping[str, Renderer], talks: Mapping[float, Sequence[Conversation]]) -> Iterator[Found]:
    """Play real conversations again with other families' tokens and tool calls."""
    texts = {
        temperature: [[sampled_text(talk.renderer, ids) for _, ids in talk.ledger.values()] for talk in real]
        for temperature, real in talks.items()
    }
    for title, renderer in renderers.items():
        for calls, variants in (("as the template", VARIANTS[:1]), ("as models do", VARIANTS)):
            for temperature, said in texts.items():
                played = [spelled(title, renderer, number, one, variants) for number, one in enumerate(said)]
                yield title, temperature, calls, total([talk.sealed() for talk in played])


def by_family(found: Sequence[Found]) -> dict[str, dict[str, Any]]:
    """Return the figures for machines."""
    families: dict[str, dict[str, Any]] = {}
    for title in dict.fromkeys(title for title, *_ in found):
        own = [one for one in found if one[0] == title]
        whole = total([drift for *_, drift in own])
        families[title] = {
            "tokens": whole.tokens,
            "wrong_by_retokenising": whole.wrong_by_retokenising,
            "wrong_here": whole.wrong_here,
            "temperatures": [{"temperature": temperature, "calls": calls, **structs.asdict(drift)} for _, temperature, calls, drift in own],
        }
    return families


def main() -> int:
    """Measure; print and write the figures. Returns 1 if anything is wrong here."""
    renderers: dict[str, Renderer] = {title: open_renderer(config) for title, config in policies().items()}
    talks = asyncio.run(sample(renderers.pop(SAMPLED)))
    real = [(SAMPLED, temperature, "none", total([talk.sealed() for talk in some])) for temperature, some in talks.items()]
    found: list[Found] = [*real, *retold(renderers, talks)]
    survived = [{"one call": variant, **{title: one_call(title, renderers[title], variant) for title in FAMILIES}} for variant in VARIANTS]
    show("one tool call: sampled tokens that come back otherwise", survived)
    report(
        "drift", "sampled tokens, if the history were tokenized again", [row(*one) for one in found], spellings=survived, **by_family(found)
    )
    return int(any(drift.wrong_here for *_, drift in found))


if __name__ == "__main__":
    sys.exit(main())
