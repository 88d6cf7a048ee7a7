"""The control endpoints: numbers, names and times that no client sends, positions that there are not, addresses that lead nowhere.

Each row says what may be answered: a refusal with a message (4xx), or success. A fault of ours (5xx) is neither.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import Answered, Site
from tests.support.ports import closed_port

SHOWN: Final = 60
"""Characters of a long name, from each end."""
BAD_REQUEST, SERVER_ERROR = 400, 500
REFUSED, TAKEN, EITHER = True, False, None
ODD: Final = {
    "of 10,000 characters": "n" * 10_000,
    "of emoji": "\U0001f600\U0001f600",
    "of control characters": "a\x00\n\x1b[2Jb",
    "of a path": "../../../etc/passwd",
    "of nothing": "",
    "of blanks": "   ",
    "of a right-to-left mark": "a\u202eb",
}


def checked(answered: Answered, *, refused: bool | None, doing: str) -> None:
    """Raise Unexpected for a fault of ours, for the wrong of success and refusal, and for a refusal that says nothing."""
    said = f"{doing}: {answered.status} {answered.body[:300]!r}"
    is_refused = answered.status >= BAD_REQUEST
    if answered.status >= SERVER_ERROR or (refused is not None and refused is not is_refused):
        raise Unexpected(said)
    try:
        told = not is_refused or bool(msgspec.json.decode(answered.body)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        told = False
    if not told:
        msg = f"refused without a word: {said}"
        raise Unexpected(msg)


def endpoint(name: str, method: str, path: str, body: Any = None, *, refused: bool | None = REFUSED, kind: Kind = Kind.CONTROL) -> Input:
    """Return the input that asks an endpoint once. `body`: bytes, or what is to be JSON."""

    async def act(site: Site) -> None:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        checked(await site.control(method, path, data), refused=refused, doing=name)

    return Input(kind=kind, name=name, act=act)


def submission(
    name: str, kind: Kind, changes: Mapping[str, Any] | str, *, refused: bool | None = REFUSED, task_id: str | None = None
) -> Input:
    """Return the input that submits a recording with other options. `changes` as text: JSON, put into the options as it is.

    What is taken in is cancelled, and has to end.
    """

    async def act(site: Site) -> None:
        own = site.name("submitted") if task_id is None else task_id
        options = {"run_id": "hostile", "harness": {"name": "none", "sandbox": "none"}, "grader": {"name": "none"}, "purpose": "collect"}
        written = json.dumps({"task_id": own, "options": options if isinstance(changes, str) else {**options, **changes}})
        data = written[:-2] + f", {changes}}}}}" if isinstance(changes, str) else written
        answered = await site.control("POST", "/tasks", data.encode())
        checked(answered, refused=refused, doing=name)
        if answered.status < BAD_REQUEST:
            site.tasks.append(own)
            checked(await site.control("DELETE", f"/tasks/{own}"), refused=TAKEN, doing=f"{name}: cancelled")
            await site.ended(own)

    return Input(kind=kind, name=f"submitted: {name}", act=act)


def engine(name: str, url: str, *, refused: bool | None = REFUSED, **fields: Any) -> Input:
    """Return the input that lets an engine join under an address, and leave again."""

    async def act(site: Site) -> None:
        wanted = {"engine_id": "odd", "kind": "scripted", "url": url.format(port=closed_port()), "policy": None, **fields}
        answered = await site.control("POST", "/engines", json.dumps(wanted).encode())
        try:
            checked(answered, refused=refused, doing=name)
        finally:
            if answered.status < BAD_REQUEST:
                checked(await site.control("DELETE", f"/engines/{wanted['engine_id']}"), refused=TAKEN, doing=f"{name}: leaves")

    return Input(kind=Kind.CONTROL, name=f"an engine {name}", act=act)


async def repeated(site: Site) -> None:
    """Submit the same task a hundred times, and another under its id."""
    body = {
        "task_id": site.name("same"),
        "options": {"harness": {"name": "x", "sandbox": "none"}, "grader": {"name": "none"}, "purpose": "collect"},
    }
    for _ in range(100):
        checked(await site.control("POST", "/tasks", json.dumps(body).encode()), refused=TAKEN, doing="the same again")
    site.tasks.append(str(body["task_id"]))
    body["options"]["samples"] = 2  # type: ignore[index]
    checked(await site.control("POST", "/tasks", json.dumps(body).encode()), refused=REFUSED, doing="another under its id")
    await site.control("DELETE", f"/tasks/{body['task_id']}")
    await site.ended(str(body["task_id"]))


async def crowd(site: Site) -> None:
    """Open a thousand sessions of one task, and cancel it while they are open: all of them end at once."""
    task_id = site.name("crowd")
    options = {"samples": 1000, "harness": {"name": "x", "sandbox": "none"}, "grader": {"name": "none"}, "purpose": "collect"}
    submitted = json.dumps({"task_id": task_id, "options": options}).encode()
    checked(await site.control("POST", "/tasks", submitted), refused=TAKEN, doing="a thousand sessions")
    site.tasks.append(task_id)
    await asyncio.sleep(2)
    checked(await site.control("DELETE", f"/tasks/{task_id}"), refused=TAKEN, doing="their end")
    await site.ended(task_id)


async def wrong_tokens(site: Site) -> None:
    """Ask everything without the operator's token."""
    for token in ("", "Bearer", "Bearer x", f"Basic {site.token}", "Bearer \u00fc", f"Bearer {site.token}x"):
        for method, path in (
            ("GET", "/tasks"),
            ("POST", "/tasks"),
            ("GET", "/fleet"),
            ("GET", "/groups"),
            ("POST", "/policies/policy/versions"),
        ):
            answered = await site.control(method, path, None, {"authorization": token})
            if answered.status != 401:
                msg = f"{method} {path} with {token[:10]!r}: {answered.status}"
                raise Unexpected(msg)


def _rows(rows: Sequence[tuple[str, str, Any]], *, refused: bool | None = REFUSED, kind: Kind = Kind.CONTROL) -> tuple[Input, ...]:
    return tuple(
        endpoint(
            f"{method} {_short(path)} {'' if body is None else _short(str(body))}".strip(), method, path, body, refused=refused, kind=kind
        )
        for method, path, body in rows
    )


def _short(text: str) -> str:
    """Return a text that is long by its ends."""
    return text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]}...{text[-SHOWN:]}"


def _made(name: str, act: Callable[[Site], Awaitable[None]], **given: Any) -> Input:
    return Input(kind=Kind.CONTROL, name=name, act=act, **given)


DIGEST: Final = "0" * 64
VERSIONS: Final = "/policies/policy/versions"
CONTROL: Final = (
    *_rows(
        (
            ("POST", "/tasks", b""),
            ("POST", "/tasks", b"[" * 100_000),
            ("POST", "/tasks", b'{"options": "\xff"}'),
            ("POST", "/tasks", b'{"options": {"harness": {"name": "\\ud800"}}}'),
            ("POST", "/tasks", b"x" * (300 << 10)),
            ("GET", "/tasks/%00", None),
            ("GET", "/tasks/..%2f..%2fetc", None),
            ("GET", f"/tasks/{'n' * 8000}", None),
            ("DELETE", "/tasks/%F0%9F%98%80", None),
            ("PUT", f"/blobs/{DIGEST}", b"x"),
            ("PUT", "/blobs/..%2f..%2fx", b"x"),
            ("PUT", f"/blobs/{'A' * 64}", b"x"),
            ("GET", f"/blobs/{DIGEST}", None),
            ("GET", f"/blobs/{DIGEST}?size=-1", None),
            ("GET", f"/blobs/{DIGEST}?size={'9' * 5000}", None),
            ("GET", f"/blobs/{DIGEST}?size=%D9%A1", None),
            ("GET", "/blobs/..%2f..%2f..%2fetc%2fpasswd?size=1", None),
            ("GET", "/blobs/%00?size=1", None),
            ("GET", "/events?after=-1", None),
            ("GET", "/events?after=1e400", None),
            ("GET", "/groups?after=x", None),
            ("GET", "/groups?purpose=none", None),
            ("GET", "/groups?unknown=1", None),
            ("GET", "/groups/%00", None),
            ("GET", "/groups/follow?at=0:-1", None),
            ("GET", "/groups/follow?at=99:0&follow=false", None),
            ("GET", f"/groups/follow?at=0:{'9' * 5000}&follow=false", None),
            ("GET", "/groups/follow?at=0:9223372036854775808&follow=false", None),
            ("GET", "/groups/follow?at=a:b", None),
            ("GET", "/dead-letters?since=x", None),
            ("GET", "/dead-letters?since=NaN&unknown=1", None),
            ("GET", f"/dead-letters?until={'9' * 5000}", None),
            ("POST", "/dead-letters/replay", b""),
            ("POST", "/dead-letters/replay", {}),
            ("POST", "/dead-letters/replay", {"positions": ["sessions/0@-1"]}),
            ("POST", "/dead-letters/replay", {"positions": [f"sessions/0@{'9' * 5000}"]}),
            ("POST", "/dead-letters/replay", {"positions": ["\u0000/0@0"]}),
            ("POST", "/dead-letters/replay", {"query": {"nothing": 1}}),
            ("GET", "/sessions/%00", None),
            ("GET", f"/sessions/{'n' * 8000}", None),
            ("GET", "/sessions/canary-1.0?strategy=x", None),
            ("POST", "/rebuild", b""),
            ("POST", "/rebuild", {"sessions": "x", "unknown": 1}),
            ("POST", "/tokens/pieces", {"policy": "policy", "ids": [-1]}),
            ("POST", "/tokens/pieces", {"policy": "policy", "ids": [2**70]}),
            ("POST", "/tokens/pieces", {"policy": "none", "ids": []}),
            ("POST", "/tokens/pieces", b"\xff"),
            ("POST", "/recordings/none/exited", {"exit_code": 2**40}),
            ("POST", "/recordings/none/exited", b'{"reward": NaN}'),
            ("POST", "/recordings/%00/heartbeat", None),
            ("POST", VERSIONS, b""),
            ("POST", VERSIONS, b"[" * 100_000),
            ("POST", VERSIONS, {"path": "/nosuch", "version": -1}),
            ("POST", VERSIONS, {"path": "/nosuch", "version": 0}),
            ("POST", VERSIONS, {"path": "/nosuch", "version": 2**31}),
            ("POST", VERSIONS, {"path": "/nosuch", "version": 2**70}),
            ("POST", VERSIONS, b'{"path": "/nosuch", "version": 1e308}'),
            ("POST", VERSIONS, {"path": "/nosuch", "version": 7}),
            ("POST", VERSIONS, {"path": "/dev/zero", "version": 7}),
            ("POST", VERSIONS, {"path": "/proc/self/mem", "version": 7}),
            ("POST", VERSIONS, {"path": "/nosuch/a\x00b", "version": 7}),
            ("POST", VERSIONS, b'{"path": "/\\ud800", "version": 7}'),
            ("POST", VERSIONS, {"path": "/" + "n" * 5000, "version": 7}),
            ("POST", VERSIONS, {"path": "/" + "../" * 1000, "version": 7}),
            ("POST", VERSIONS, {"path": "relative", "version": 7}),
            ("POST", VERSIONS, {"path": "/nosuch", "version": 7, "canary": {"ids": [-1], "logprobs": [0]}}),
            ("POST", "/policies/none/versions", {"path": "/nosuch", "version": 7}),
            ("POST", "/policies/%00/versions", {"path": "/nosuch", "version": 7}),
            ("POST", f"/policies/{'n' * 8000}/versions", {"path": "/nosuch", "version": 7}),
            ("GET", "/policies/%00", None),
            ("POST", "/engines", b""),
            ("POST", "/engines", {"engine_id": "../x", "kind": "scripted", "url": "http://127.0.0.1:9"}),
            ("POST", "/engines", {"engine_id": "x", "kind": "scripted", "url": "file:///etc/passwd"}),
            ("POST", "/engines", {"engine_id": "x", "kind": "scripted", "url": "http://127.0.0.1:9", "max_concurrency": 0}),
            ("POST", "/engines", {"engine_id": "x", "kind": "scripted", "url": "http://127.0.0.1:9", "max_concurrency": -(2**70)}),
            ("DELETE", "/engines/%00", None),
            ("POST", "/engines/nosuch/drain", None),
        )
    ),
    *_rows(
        (
            ("GET", "/tasks?run_id=%00%0A", None),
            ("GET", "/groups?after=nan", None),
            ("GET", "/groups?after=-1e308&run_id=none", None),
            ("GET", "/groups/follow?at=0:0,0:0&follow=false", None),
            ("GET", "/groups/follow?at=&follow=false", None),
            ("POST", "/tokens/pieces", {"policy": "policy", "ids": [2**31 - 1]}),
            ("POST", "/tokens/pieces", {"policy": "policy", "ids": [1] * 200_000}),
            ("POST", "/rebuild", {}),
        ),
        refused=EITHER,
    ),
    engine("at a port where nobody listens", "http://127.0.0.1:{port}", refused=EITHER),
    engine("at a port that there is not", "http://127.0.0.1:99999", refused=EITHER),
    engine("at half an address", "http://[::1", refused=EITHER),
    engine("at no host", "http:///x", refused=EITHER),
    engine("with a password", "http://a:b@127.0.0.1:{port}", refused=EITHER),
    engine("at an address with NUL", "http://a\x00b", refused=EITHER),
    engine("at an address of 10,000 characters", "http://" + "a" * 10_000, refused=EITHER),
    engine("of another kind", "http://127.0.0.1:{port}", kind="abacus", refused=EITHER),
    engine("for a policy that there is not", "http://127.0.0.1:{port}", policy="none", refused=EITHER),
    engine("for 2^63 calls at a time", "http://127.0.0.1:{port}", max_concurrency=2**63, refused=EITHER),
    _made("the same task a hundred times", repeated),
    _made("a thousand open sessions that are cancelled", crowd, seconds=90),
    _made("tokens that open nothing", wrong_tokens),
)
SAMPLES: Final[tuple[Any, ...]] = (0, -1, 10**9, 2**70, 1.5, "1", None, True, [])
SUBMITTED: Final = (
    *(submission(f"samples = {value}", Kind.NUMBERS, {"samples": value}) for value in SAMPLES),
    *(
        submission(f"group.{name} = {value}", Kind.NUMBERS, {"group": {name: value}})
        for name in ("deliver_early_at", "min_usable", "max_staleness")
        for value in (-1, 2**70, "x")
    ),
    *(submission(f"group.deliver_early_at = {value}", Kind.NUMBERS, {"group": {"deliver_early_at": value}}) for value in (0, 2)),
    *(
        submission(f"sampling.{field} = {value[:30]}", Kind.NUMBERS, f'"sampling": {{"{field}": {value}}}', refused=refused)
        for refused, field, values in (
            (REFUSED, "temperature", ("NaN", "Infinity", "1e400", "-1", '"1"')),
            (EITHER, "temperature", ("1e308", "1e-308", "-0.0")),
            (REFUSED, "top_p", ("0", "2", "-1")),
            (REFUSED, "top_k", ("-1", "1.5")),
            (EITHER, "top_k", ("2147483648", "18446744073709551616")),
            (REFUSED, "min_p", ("2", "-1")),
            (REFUSED, "max_tokens", ("0", "-1", "1.5")),
            (EITHER, "max_tokens", ("2147483648", "18446744073709551616", "9" * 4000)),
            (EITHER, "seed", ("9223372036854775808", "18446744073709551616", "-9223372036854775809", "9" * 4000)),
            (REFUSED, "seed", ("1.5", "NaN")),
        )
        for value in values
    ),
    *(
        submission(f"budgets.{field} = {value}", kind, f'"budgets": {{"{field}": {value}}}', refused=refused)
        for kind, refused, field, values in (
            (Kind.TIMES, REFUSED, "agent_seconds", ("0", "-1", "NaN", "1e400", '"1"')),
            (Kind.TIMES, EITHER, "agent_seconds", ("1e308", "1e-308")),
            (Kind.TIMES, REFUSED, "deadline_seconds", ("0", "-1", "NaN", "1e400")),
            (Kind.TIMES, EITHER, "deadline_seconds", ("1e308", "1e-308")),
            (Kind.NUMBERS, REFUSED, "tokens", ("0", "-1")),
            (Kind.NUMBERS, EITHER, "tokens", ("18446744073709551616",)),
            (Kind.NUMBERS, EITHER, "attempts", ("18446744073709551616",)),
        )
        for value in values
    ),
    *(submission(f"a task id {what}", Kind.NAMES, {}, task_id=name) for what, name in ODD.items()),
    *(submission(f"a run id {what}", Kind.NAMES, {"run_id": name}, refused=EITHER) for what, name in ODD.items()),
    *(submission(f"a policy {what}", Kind.NAMES, {"policy": name}) for what, name in ODD.items()),
    *(submission(f"a harness {what}", Kind.NAMES, {"harness": {"name": name}}) for what, name in ODD.items()),
    *(
        submission(
            f"a recorded harness {what}",
            Kind.NAMES,
            {"harness": {"name": name, "sandbox": "none", "options": {name: name}}},
            refused=EITHER,
        )
        for what, name in ODD.items()
    ),
    *(submission(f"a sandbox {what}", Kind.NAMES, {"harness": {"name": "script", "sandbox": name}}) for what, name in ODD.items()),
    *(submission(f"a model {what}", Kind.NAMES, {"models": {name: {"refuse": name}}}, refused=EITHER) for what, name in ODD.items()),
    *(submission(f"a grader {what}", Kind.NAMES, {"grader": {"name": name}}) for what, name in ODD.items()),
    submission("a lone surrogate as run id", Kind.NAMES, '"run_id": "\\ud800"'),
    submission(
        "a grader's expression that is none",
        Kind.NAMES,
        {"grader": {"name": "answer", "options": {"expected": "(", "match": "regex"}}},
        refused=EITHER,
    ),
)
