"""What is wrong with a run as a whole: told as soon as it can be known, not when its last group has ended."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from evener.cli.submitting import Wish
from evener.client.client import Client
from evener.client.errors import ClientError
from evener.client.views import ServedEngine, TaskView
from evener.engines.port import LogprobRule
from evener.harnesses.registry import harness
from evener.proto.ends import CONSEQUENCES, End
from evener.proto.spec import HarnessSpec, Purpose, Sampling
from evener.proto.state import Stage
from evener.service.exits import complain
from evener.tokens.remarks import RENDER_TOOLS

TELLING: Final = frozenset({end for end in End if not CONSEQUENCES[end].trainable} - {End.CANCELLED} | {End.CONTEXT_OVERFLOW})
"""Ends that more sessions of the run will meet, as likely as not."""


TOKEN_BYTES: Final = 4
"""Of a prompt, about."""
NO_TOOLS: Final = frozenset({"0", "none"})
"""Of the option `tools`: the harness offers none."""


class Foresight:
    """Warns of a run as soon as its engines are known (nothing to train, unseen tools, no room), and once of each end that tells."""

    def __init__(self, client: Client, wish: Wish) -> None:
        self._client = client
        self._wish = wish
        self._known = False
        self._told: set[End] = set()

    async def heed(self, view: TaskView) -> None:
        """Take note of how far a task is."""
        if view.stages.get(Stage.SEALED):
            await self.look()
        for end in sorted(TELLING & view.ends.keys() - self._told):
            self._told.add(end)
            await self._tell(view.task_id, end)

    async def look(self) -> None:
        """Ask which engines there are, unless that was known before."""
        if self._known:
            return
        try:
            engines = await self._client.served_engines()
        except ClientError:
            return  # the run says what is wrong, if that stays so
        mine = [engine for engine in engines if engine.policy == self._wish.policy]
        self._known = bool(mine)
        for warning in (self._untrainable(mine), without_tools(self._wish, mine), too_long(self._wish, mine)):
            if warning is not None:
                complain(f"warning: {warning}")

    def _untrainable(self, engines: Sequence[ServedEngine]) -> str | None:
        return None if self._wish.purpose is Purpose.EVAL else untrainable(self._wish.sampling, engines)

    async def _tell(self, task_id: str, end: End) -> None:
        """Name the first session that ended so, and why."""
        with suppress(ClientError):  # the run's end says it again
            sessions = (await self._client.task(task_id)).sessions
            for session in (session for session in sessions if session.end is end):
                complain(f"warning: session {session.session_id} ended by {end}: {session.detail or f'evener show {session.session_id}'}")
                return


def untrainable(sampling: Sampling, engines: Iterable[ServedEngine]) -> str | None:
    """Return why nothing that these engines sample with these settings can be trained. None: something can, or there is no engine."""
    found = tuple(engines)
    if not found or any(rule_of(engine).exact_for(sampling) for engine in found):
        return None
    return (
        f"nothing of this run can be trained: with {_settings(sampling)} the logprobs that engine {found[0].engine_id} reports are not "
        f"those of what it samples. They are {_condition(rule_of(found[0]))}"
    )


def without_tools(wish: Wish, engines: Iterable[ServedEngine]) -> str | None:
    """Return that the policy will not see the tools of the run's harness, and what to do. None: it will, or there are none."""
    if not _offers_tools(wish.harness) or all(engine.renders_tools for engine in engines):
        return None
    return f"the chat template of policy {wish.policy} renders no tools, and harness {wish.harness.name} has some: {RENDER_TOOLS}"


def too_long(wish: Wish, engines: Sequence[ServedEngine]) -> str | None:
    """Return that no engine holds the first prompt of the run's harness, and what to do. None: one may, or there is none."""
    wanted = harness(wish.harness.name).first_prompt_bytes(wish.harness.options) // TOKEN_BYTES
    longest = max((engine.context_length for engine in engines), default=wanted)
    if wanted <= longest or without_tools(wish, engines):
        return None
    return (
        f"the first prompt of harness {wish.harness.name} takes about {wanted} tokens, and no engine of policy {wish.policy} holds more "
        f"than {longest}: give it a longer context, or take tools away by the harness's options (docs/harnesses.md)"
    )


def _offers_tools(spec: HarnessSpec) -> bool:
    """Return whether a harness offers tools, those that need no trust among them, unless its options take them away."""
    found = harness(spec.name)
    return (found.has_tools or found.probe is not None) and spec.options.get("tools") not in NO_TOOLS


def rule_of(engine: ServedEngine) -> LogprobRule:
    """Return for which settings an engine is exact."""
    return LogprobRule(any_temperature=engine.any_temperature, filters=engine.filters)


def _settings(sampling: Sampling) -> str:
    """Name the settings that are not those of the whole distribution."""
    plain = Sampling()
    names = ("temperature", "top_p", "top_k", "min_p")
    return ", ".join(
        f"{name.replace('_', '-')} {getattr(sampling, name):g}" for name in names if getattr(sampling, name) != getattr(plain, name)
    )


def _condition(rule: LogprobRule) -> str:
    temperature = "at any --sampling.temperature above 0" if rule.any_temperature else "at --sampling.temperature 1"
    return temperature + ("" if rule.filters else ", without top-p, top-k and min-p")
