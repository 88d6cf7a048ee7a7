"""The grade of a session, for a terminal: its reward, the grader's output, and whether it was trained."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from evener.client.client import Client
from evener.client.errors import ClientError, Unavailable
from evener.client.session_views import ScoreView, SessionView
from evener.graders.inputs import INPUTS
from evener.proto.sessions import Artifact
from evener.proto.spec import Purpose

TAIL_LINES: Final = 20
"""The number of lines of each output that are shown by default."""
EARLIER_TRY: Final = "try-"
"""The prefix of what earlier tries left."""
MAX_OUTPUT_BYTES: Final = 1 << 20
"""The largest part of each output that is read: its end."""


class Output(Struct, frozen=True, kw_only=True):
    """A file that a grading left, as text."""

    name: str
    bytes: int
    text: str
    """Its text, or the end of a large one, or why it cannot be read."""


class SessionGrade(Struct, frozen=True, kw_only=True):
    """The grade of a session: `score` in `evener show --json`."""

    score: ScoreView
    outputs: tuple[Output, ...]


async def graded(client: Client, session_id: str) -> SessionGrade | None:
    """Return the grade of a session. None: no service can tell now."""
    try:
        view = await client.score(session_id)
    except Unavailable:
        return None
    evidence = view.score.evidence if view.score else ()
    return SessionGrade(score=view, outputs=tuple([await _output(client, artifact) for artifact in evidence]))


def grade_facts(view: SessionView, known: SessionGrade | None) -> list[tuple[str, str]]:
    """Return reward and use, as lines of the heading."""
    if view.trajectory is None or known is None:
        return []
    rewards = known.score.score.call_rewards if known.score.score is not None else {}
    of_calls = [("call rewards", _of_calls(view, rewards))] if rewards else []
    return [("reward", _reward(known.score)), *of_calls, *_flags(view, known.score), ("trained", _trained(view, known.score))]


def outputs(known: SessionGrade | None, *, whole: bool) -> RenderableType:
    """Return what the grading left: everything, or the last lines of what the last try left."""
    parts: list[RenderableType] = []
    left = known.outputs if known else ()
    last = [output for output in left if output.name != INPUTS and not output.name.startswith(EARLIER_TRY)]
    for output in left if whole else last:
        lines = output.text.splitlines()
        shown = lines if whole else lines[-TAIL_LINES:]
        more = f", last {len(shown)} of {len(lines)} lines (--grader: all)" if len(shown) < len(lines) else ""
        parts += [Rule(f"grader: {output.name}, {output.bytes} bytes{more}", align="left"), Text("\n".join(shown))]
    if not whole and any(output.name.startswith(EARLIER_TRY) for output in left):
        parts.append(Text("--grader also shows what earlier tries left", "dim"))
    if whole and not parts:
        parts.append(Text("the grader left nothing"))
    return Group(*parts)


async def _output(client: Client, artifact: Artifact) -> Output:
    try:
        text = (await client.get_blob(artifact.blob))[-MAX_OUTPUT_BYTES:].decode(errors="replace")
    except ClientError as error:
        text = f"cannot be read: {error}"
    return Output(name=artifact.name, bytes=artifact.blob.size, text=text)


def _reward(view: ScoreView) -> str:
    score = view.score
    if score is None:
        return "none known: it is not graded yet, or its group ended more than keep_ended_seconds ago"
    by = f"by {score.grader}" + (f" in {score.grading_seconds:.1f} s" if score.tries else "")
    tries = f", {score.tries} tries" if score.tries > 1 else ""
    if score.reward is None:
        return f"none, {by}{tries}: {score.ungraded}"
    others = ", ".join(f"{name} {value:g}" for name, value in score.rewards.items() if name != "reward")
    return f"{score.reward:g}{f' ({others})' if others else ''}, {by}{tries}"


def _flags(view: SessionView, score: ScoreView) -> list[tuple[str, str]]:
    """Return the signs of reward hacking: each with its call or file, and the text that shows it."""
    told = score.score
    if told is None:
        return []
    numbers = {call.call_id: call.number for call in view.calls}
    shown = []
    for flag in told.flags:
        place = f"call {numbers.get(flag.call_id, flag.call_id)}, {flag.where}" if flag.call_id is not None else flag.where
        shown.append(
            ("flag", f"{flag.detector.value.replace('_', ' ')} ({flag.consequence.value}): {place}: {' '.join(flag.excerpt.split())}")
        )
    return shown if told.unwatched is None else [*shown, ("flag", f"not all of it could be looked at: {told.unwatched}")]


def _of_calls(view: SessionView, rewards: Mapping[str, float]) -> str:
    numbers = {call.call_id: call.number for call in view.calls}
    known = sorted((numbers[call_id], reward) for call_id, reward in rewards.items() if call_id in numbers)
    return ", ".join(f"#{number} {reward:g}" for number, reward in known)


def _trained(view: SessionView, score: ScoreView) -> str:
    """Return whether trainers got the session, and why not."""
    use, accounting = score.use, view.told.accounting
    if use is None:
        return "not yet: its group has not ended"
    if not use.delivered:
        return f"no: its group was not delivered: {use.reason}"
    if use.excluded is not None:
        return f"no: it was excluded from its group: {use.excluded.value.replace('_', ' ')}"
    if not accounting.delivered:
        return f"no: {_reasons(view) or 'no token was sampled'}"
    if use.purpose is not Purpose.TRAIN:
        return f"no: it was kept for {use.purpose.value}"
    return f"{accounting.delivered} tokens"


def _reasons(view: SessionView) -> str:
    excluded: Sequence[tuple[str, int]] = [(reason.value, count) for reason, count in view.told.accounting.excluded.items()]
    return ", ".join(f"{count} tokens {reason.replace('_', ' ')}" for reason, count in excluded)


def with_score(view: SessionView, known: SessionGrade | None) -> dict[str, object]:
    """Return the session for JSON, with its grade under `score`."""
    return {**structs.asdict(view), "score": known}
