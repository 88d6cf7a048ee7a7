"""make bench-tokens: how fast sessions are rebuilt, what placing a call costs as a session grows, and what a live session weighs.

CPU seconds of one process, so that a busy machine disturbs little (it does: its caches are shared). Placing is timed at the first
sight of each request, as in the gateway; reading the body (cutting it into messages, hashing them, parsing the new ones) stands
beside it. The profiles time the parts by themselves, on what the whole was timed on.
"""

import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from proofs.bench.families import EMBEDDED, policies
from proofs.bench.sessions import Talk
from proofs.figures import Row, report, show
from tests.support.world import folded

from evener.dialects.canonical import CanonicalRequest
from evener.proto.arrays import length
from evener.proto.codec import AnyEvent, decode, encode
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import CallClosed, CallOpened
from evener.proto.spec import PolicyOptions
from evener.provider_gateway.session import SessionRuntime
from evener.templates.open import open_renderer
from evener.templates.port import Renderer
from evener.tokens.inconsistencies import inconsistent_segments
from evener.tokens.place import Placed
from evener.tokens.rows import cut, digest
from evener.tokens.trajectory import build

REBUILT_TURNS, REBUILDS = 50, 60
EARLY, LATE = 10, 200
"""Turns at which placing is compared."""
BESIDE, SESSIONS = 3, 9
"""So many turns before and after each are taken too, of so many sessions; the median counts."""
RESULT_WORDS, ANSWER_WORDS = 220, 40
"""The words of each turn whose placing is timed: 300 tokens."""
REBUILT_RESULT_WORDS, REBUILT_ANSWER_WORDS = 1_130, 80
"""The words of each turn in the sessions that are rebuilt and weighed: 1,250 tokens."""


def rebuild(log: list[bytes], session_id: str) -> bytes:
    """Return a session's trajectory from its records, as the reconstructor writes it."""
    return encode(build(folded(log, session_id)))


def rebuilding(talk: Talk) -> tuple[Row, list[Row]]:
    """Return sessions rebuilt a second and core with what they were, and where the time goes."""
    talk.seal()
    log, session_id = talk.log, talk.session.session_id
    seconds = _milliseconds(lambda: rebuild(log, session_id), REBUILDS, middle=statistics.fmean) / 1e3
    session = folded(log, session_id)
    made, built = cut(session, TerminationReason.FINISHED), build(session)
    parts = {
        "decode and fold the records": lambda: folded(log, session_id),
        "compare with the seal's fingerprints": lambda: inconsistent_segments(session),
        "cut the rows": lambda: cut(session, TerminationReason.FINISHED),
        "digest the rows": lambda: digest(made.rows),
        "encode the trajectory": lambda: encode(built),
    }
    spent = {part: _milliseconds(run, REBUILDS) for part, run in parts.items()}
    tokens = max(event.prompt_tokens for event in talk.events if isinstance(event, CallOpened))
    row = {"sessions_per_s_per_core": 1 / seconds, "turns": REBUILT_TURNS, "tokens": tokens, "records_kb": sum(map(len, log)) / 1e3}
    return row, _shares(spent, seconds * 1e3)


def placing(renderer: Renderer) -> tuple[Row, list[Row]]:
    """Return the milliseconds of reading and placing, early and late in sessions whose turns bring the same new content; and a profile."""
    read: dict[int, list[float]] = {EARLY: [], LATE: []}
    placed: dict[int, list[float]] = {EARLY: [], LATE: []}
    profiles: list[dict[str, float]] = []
    for seed in range(SESSIONS):
        talk = Talk(renderer, seed, result_words=RESULT_WORDS, answer_words=ANSWER_WORDS)
        for turn in range(1, LATE + BESIDE + 1):
            body = talk.body()
            with _no_collections():
                began = time.process_time_ns()
                request = talk.parse(body)
                between = time.process_time_ns()
                at = talk.place_request(request)
                ended = time.process_time_ns()
            for near in (EARLY, LATE):
                if abs(turn - near) <= BESIDE:
                    read[near].append((between - began) / 1e6)
                    placed[near].append((ended - between) / 1e6)
            if turn == LATE:
                profiles.append(_profile(talk, request, at))
            talk.record(request, at)
    early, late = statistics.median(placed[EARLY]), statistics.median(placed[LATE])
    row = {
        "read_ms_at_turn_10": statistics.median(read[EARLY]),
        "read_ms_at_turn_200": statistics.median(read[LATE]),
        "place_ms_at_turn_10": early,
        "place_ms_at_turn_200": late,
        "cost_ratio_turn_200_to_10": late / early,
    }
    return row, _shares({part: statistics.median(one[part] for one in profiles) for part in profiles[0]}, late)


def _profile(talk: Talk, request: CanonicalRequest, at: Placed) -> dict[str, float]:
    """Return the milliseconds of each part of a placement."""
    messages, forest = request.messages, talk.session.forest
    parent = at.placement.parent
    if parent is None:
        msg = "a turn of these sessions extends the one before"
        raise RuntimeError(msg)
    answered = next(index for index in reversed(range(len(messages))) if messages[index]["role"] == "assistant")
    before, answer, new = messages[:answered], messages[answered], messages[answered + 1 :]
    spent = {
        "recognise the history": _milliseconds(lambda: talk.history.read(messages, request.tools, PolicyOptions(), request.digests)),
        "bridge: tokenize the new text": _milliseconds(lambda: talk.renderer.encode(new[-1]["content"], special=False)),
        "bridge": _milliseconds(lambda: talk.renderer.bridge(before, answer, new, request.tools, closed=True)),
        "put the ids together": _milliseconds(lambda: np.concatenate((forest.path(parent), at.prompt_delta_ids))),
    }
    spent["bridge: all else"] = spent.pop("bridge") - spent["bridge: tokenize the new text"]
    return spent


def raw_bytes(events: list[AnyEvent]) -> int:
    """Return the bytes of a session's token arrays."""
    given = sum(4 * length(event.prompt_delta_ids) for event in events if isinstance(event, CallOpened))
    sampled = sum(12 * length(choice.sampled_ids) for event in events if isinstance(event, CallClosed) for choice in event.choices)
    return given + sampled


def weight(talk: Talk) -> Row:
    """Return what a live session holds, against its raw arrays. Requests' own bytes are not kept with it."""
    log = talk.log
    body = talk.body()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    runtime = SessionRuntime(talk.session.session_id)
    for offset, record in enumerate(log, start=1):
        runtime.log.apply(decode(record), offset=offset, record_at=100.0)
    talk.session, talk.history = runtime.log, runtime.history
    talk.place_request(talk.parse(body))
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    raw = raw_bytes(talk.events)
    return {"raw_arrays_kb": raw / 1e3, "live_session_kb": held / 1e3, "memory_ratio": held / raw}


def _long_talk(renderer: Renderer) -> Talk:
    talk = Talk(renderer, 1, result_words=REBUILT_RESULT_WORDS, answer_words=REBUILT_ANSWER_WORDS)
    for _ in range(REBUILT_TURNS):
        talk.turn()
    return talk


def _milliseconds(run: Callable[[], object], times: int = 9, *, middle: Callable[[list[float]], float] = statistics.median) -> float:
    spent = []
    with _no_collections():
        for _ in range(times):
            began = time.process_time_ns()
            run()
            spent.append((time.process_time_ns() - began) / 1e6)
    return middle(spent)


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _shares(spent: dict[str, float], whole_ms: float) -> list[Row]:
    """Return the parts of a whole, each timed again and again, and the rest: what is between them, and caches that were cold."""
    spent |= {"the rest, and cold caches": whole_ms - sum(spent.values())}
    return [{"part": part, "ms": ms, "percent": 100 * ms / whole_ms} for part, ms in spent.items()]


def _short(row: Row) -> Row:
    """Return a row of placing with names that fit in a table."""
    return {name.replace("_ms_at_turn_", " at ").replace("cost_ratio_turn_200_to_10", "200 to 10"): value for name, value in row.items()}


def main() -> int:
    """Measure; print and write the figures. The headline is a renderer's that bridges by its family's rules."""
    bridging, two_renders = open_renderer(policies()["Qwen3"]), open_renderer(EMBEDDED)
    placed, placing_profile = placing(bridging)
    linear, _ = placing(two_renders)
    rows = [{"renderer": "Qwen3, by its family's rules", **placed}, {"renderer": "SmolLM2 (chatml_tools), two renders", **linear}]
    held = weight(_long_talk(bridging))
    rebuilt, rebuilding_profile = rebuilding(_long_talk(bridging))
    show("placing a call: CPU ms at turns 10 and 200", [_short(row) for row in rows])
    show("where a placement's time goes, turn 200, Qwen3", placing_profile)
    show("a live session in memory", [held])
    show("where a rebuild's time goes", rebuilding_profile)
    headline = {
        "sessions_per_s_per_core": rebuilt["sessions_per_s_per_core"],
        "place_ms_at_turn_200": placed["place_ms_at_turn_200"],
        "cost_ratio_turn_200_to_10": placed["cost_ratio_turn_200_to_10"],
        "memory_ratio": held["memory_ratio"],
    }
    profiles = {"placing": placing_profile, "rebuilding": rebuilding_profile}
    report("bench-tokens", "rebuilding", [rebuilt], **headline, placing=rows, memory=held, profiles=profiles)
    return 0


if __name__ == "__main__":
    sys.exit(main())
