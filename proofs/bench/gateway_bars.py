"""The aims of the gateway bench, and the lines that it prints beside its table."""

import sys
from typing import Any, Final

ADDED_P50_MS: Final = {"embedded": 2.0, "kafka": 4.0}
CALLS_PER_S: Final = {"embedded": 450.0, "kafka": 350.0}

Figures = dict[str, Any]


def bars(about: Figures) -> dict[str, Figures]:
    """Compare the figures with what was aimed at; on Kafka too, where it was measured."""
    found: dict[str, Figures] = {}
    for bus, one in (("embedded", about), ("kafka", about["kafka"])):
        if one is not None:
            found |= {
                f"{bus}: added to a call, p50": _bar(one["added_ms"]["p50"], most=ADDED_P50_MS[bus]),
                f"{bus}: added to a call, p99": _bar(one["added_ms"]["p99"], most=8.0 if bus == "embedded" else None),
                f"{bus}: relay beside the gateway, p50": _bar(one["relay"]["added_ms"]["p50"] - one["added_ms"]["p50"], most=1.0),
                f"{bus}: first token, live, p50": _bar(one["first_token_added_ms_p50"], most=2.0),
                f"{bus}: calls a second and core, buffered": _bar(one["calls_per_s_per_core"], least=CALLS_PER_S[bus]),
                f"{bus}: calls a second and core, live, a token every 4 ms": _bar(one["live_calls_per_s_per_core"], least=120.0),
                f"{bus}: beside sessions that open with 60,000 tokens, p99": _bar(one["beside_long"]["others_p99_ms"], most=20.0),
            }
    many, tasks = about["sessions_2000"], about["tasks_per_call"]
    return found | {
        "lost of very many calls": _bar(many["lost"], most=0),
        "KiB for an open call": _bar(1024 * many["rss_mb_per_session"], most=120.0),
        "tasks of a call, gateway": _bar(round(tasks["gateway"], 2), most=3.0),  # of 2,000 calls: a task beside them does not count
        "tasks of a call, relay": _bar(round(tasks["relay"], 2), most=1.0),
    }


def _bar(value: float, *, most: float | None = None, least: float | None = None) -> Figures:
    met = (most is None or value <= most) and (least is None or value >= least)
    return {"value": value, "most": most, "least": least, "met": met}


def say(about: Figures) -> None:
    """Print the figures that are in no table."""
    many, slow, ratio = about["sessions_2000"], about["slow_reader"], about["by_turn"]["ratio_60k"]
    lines = [
        f"{many['sessions']} calls open at once: {many['lost']} lost, {1024 * many['rss_mb_per_session']:.0f} KiB each",
        f"beside a reader that does not read: p50 {slow['beside_p50_ms']:.1f} ms, without it {slow['alone_p50_ms']:.1f} ms",
        f"60k prompts: {ratio:.2f} times the CPU of 8k in a call that extends another",
        *(f"{share:6.1%}  {way}: {part}" for way, parts in about["profile"].items() for part, share in parts.items()),
        *about["not_measured"].values(),
        *(f"{'met' if bar['met'] else 'MISSED':>6}  {name}: {bar['value']:.1f}" for name, bar in about["bars"].items()),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
