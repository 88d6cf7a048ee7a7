"""The independent checker: every row of every trajectory against an engine's own ledger. Imports nothing of Evener.

    python -m evener.audit.engine_ledger LEDGER.jsonl TRAJECTORIES.msgpack ...

A ledger line is {"request_id": "<call id>-<choice>", "fed_ids", "sampled_ids", "logprobs", "versions", "aborted"}, as the engine
saw it; a version is a label whose number stands at its end. A trajectory file is one msgpack map, the value of a TrajectoryBuilt
record (fields inline), or a concatenation of such maps, each after its 4-byte big-endian length. It answers with the faults
found, one a line, and exit status 1 if any.
"""

import json
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


def numbers(data: bytes, kind: str) -> list[Any]:
    """Decode int32 (`i`) or float32 (`f`), little-endian."""
    return list(struct.unpack(f"<{len(data) // 4}{kind}", data))


def read_ledger(lines: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the ledger's entries by call id (request ids are `<call id>-<choice>`)."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        entry = json.loads(line)
        entries.setdefault(call_of(entry["request_id"]), []).append(entry)
    return entries


def call_of(request_id: str) -> str:
    """Return the call id in an engine's request id."""
    return request_id.rpartition("-")[0]


def number_of(label: str) -> int:
    """Return the number at the end of a version's label; 0 without one."""
    return int((re.search(r"\d+$", label) or "0")[0])


def answers(entries: list[dict[str, Any]], ids: list[int], start: int, *, spent: bool) -> list[list[tuple[dict[str, Any], int]]]:
    """Return the ways in which `ids` from `start` on were sampled: for each id the ledger's entry, and the place in it.

    In one piece: of an aborted request, or where the budget's last token ends answers (`spent`), only what was taken. Or in several
    requests for one choice, each given exactly all before it; all but the last were aborted, and count whole.
    """
    ways = []
    for entry in (one for one in entries if one["fed_ids"] == ids[:start]):
        told, aborted = entry["sampled_ids"], entry.get("aborted")
        own = [(entry, place) for place in range(min(len(told), len(ids) - start))]
        if (told[: len(own)] if aborted or spent else told) == ids[start:]:
            ways.append(own)
        elif aborted and own and told == ids[start : start + len(own)]:
            same = [one for one in entries if one["request_id"].partition(".")[0] == entry["request_id"].partition(".")[0]]
            ways += [own + rest for rest in answers(same, ids, start + len(own), spent=spent)]
    return ways


def check_row(
    row: dict[str, Any], name: str, ledger: Mapping[str, list[dict[str, Any]]], trained: Counter[tuple[str, int]], *, spent: bool
) -> list[str]:
    """Return the faults of one row; count the sampled tokens that it trains in `trained`. `spent`: whether the token budget was spent."""
    ids, versions, call_of = (numbers(row[name], "i") for name in ("ids", "versions", "call_of"))
    mask, logprobs = list(row["loss_mask"]), numbers(row["logprobs"], "f")
    if not len(ids) == len(mask) == len(versions) == len(call_of) == len(logprobs):
        return [f"{name}: arrays differ in length"]
    given = [at for at, number in enumerate(call_of) if number < 0 and (mask[at] or not math.isnan(logprobs[at]) or versions[at] != -1)]
    faults = [f"{name}: token {at} was not sampled, but is masked {mask[at]}, {logprobs[at]}, {versions[at]}" for at in given]
    for number, call_id in enumerate(row["calls"]):
        places = [at for at, which in enumerate(call_of) if which == number]
        if not places or places != list(range(places[0], places[-1] + 1)):
            faults.append(f"{name}: call {call_id} has no whole segment")
            continue
        start, end = places[0], places[-1] + 1
        found = answers(ledger.get(call_id, []), ids[:end], start, spent=spent)
        if not found:
            faults.append(f"{name}: call {call_id}: the engine never sampled {end - start} ids after exactly these {start}")
            continue
        before = [sum(trained[(entry["request_id"], place)] for entry, place in way) for way in found]
        other = [[number_of(entry["versions"][place]) for entry, place in way] != versions[start:end] for way in found]
        _, way = min(zip(zip(before, other, strict=True), found, strict=True), key=lambda scored: scored[0])
        for at, (entry, place) in zip(range(start, end), way, strict=True):
            if mask[at]:
                trained[(entry["request_id"], place)] += 1
                if not math.isclose(logprobs[at], entry["logprobs"][place], rel_tol=1e-5, abs_tol=1e-6):
                    faults.append(f"{name}: token {at} has logprob {logprobs[at]}, the engine said {entry['logprobs'][place]}")
                if versions[at] != number_of(entry["versions"][place]):
                    faults.append(f"{name}: token {at} has version {versions[at]}, the engine said {entry['versions'][place]}")
    return faults


def check_trajectory(
    trajectory: dict[str, Any], ledger: Mapping[str, list[dict[str, Any]]], trained: Counter[tuple[str, int]]
) -> list[str]:
    """Return the faults of one session: of its rows, its accounting, and its calls compared with the ledger."""
    name = trajectory["session_id"]
    faults, delivered, books = list[str](), 0, trajectory.get("accounting", {})
    answered = books.get("sampled", 0) - books.get("excluded", {}).get("budget", 0)
    spent = answered == trajectory.get("spec", {}).get("budgets", {}).get("tokens", 0)
    for index, row in enumerate(trajectory.get("rows", ())):
        before = trained.total()
        faults += check_row(row, f"{name} row {index}", ledger, trained, spent=spent)
        delivered += sum(row["loss_mask"])
        if sum(row["loss_mask"]) != trained.total() - before and not faults:
            faults.append(f"{name} row {index}: masks train tokens outside any segment")
    excluded = sum(books.get("excluded", {}).values())
    if books.get("delivered", 0) != delivered:
        faults.append(f"{name}: the accounting says {books.get('delivered', 0)} delivered, the rows hold {delivered}")
    if books.get("sampled", 0) != delivered + excluded:
        faults.append(f"{name}: {delivered} delivered + {excluded} left out is not {books.get('sampled', 0)} sampled")
    told = {call["call_id"]: call.get("sampled_tokens", 0) for call in trajectory.get("calls", ())}
    if sum(told.values()) != books.get("sampled", 0):
        faults.append(f"{name}: its calls sampled {sum(told.values())}, the accounting says {books.get('sampled', 0)}")
    for call_id, tokens in told.items():
        in_ledger = sum(len(entry["sampled_ids"]) for entry in ledger.get(call_id, ()))
        if in_ledger < tokens:
            faults.append(f"{name}: call {call_id} holds {tokens} sampled tokens, the engine sampled {in_ledger}")
    return faults


def check(trajectories: list[dict[str, Any]], ledger_lines: list[str]) -> list[str]:
    """Return everything that is wrong, across sessions too: a sampled token is trained at most once."""
    ledger = read_ledger(ledger_lines)
    trained: Counter[tuple[str, int]] = Counter()
    faults = [fault for trajectory in trajectories for fault in check_trajectory(trajectory, ledger, trained)]
    return faults + [f"token {at} of request {request} is trained {times} times" for (request, at), times in trained.items() if times > 1]


def read_trajectories(data: bytes) -> list[dict[str, Any]]:
    """Return the maps in a file: one bare, or any number with their lengths before them."""
    if data[:1] not in {b"\x00", b"\x01", b"\x02", b"\x03"}:  # a length of less than 64 MiB; a map begins with 0x80 or more
        return [msgspec.msgpack.decode(data)]
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(msgspec.msgpack.decode(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def main(arguments: list[str]) -> int:
    """Check files; print the faults."""
    ledger, *files = arguments
    trajectories = [one for file in files for one in read_trajectories(Path(file).read_bytes())]
    faults = check(trajectories, Path(ledger).read_text().splitlines())
    print(*faults, f"{len(trajectories)} trajectories, {len(faults)} faults", sep="\n")  # noqa: T201 - a command
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
