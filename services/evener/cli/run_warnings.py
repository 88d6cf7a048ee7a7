"""Warns about faults of a run as a whole as soon as they are known, instead of when its last group has ended."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from evener.cli.submission import RunRequest
from evener.client.client import Client
from evener.client.errors import ClientError
from evener.client.views import ServedEngine, TaskView
from evener.engines.port import LogprobRule
from evener.harnesses.registry import harness
from evener.proto.reasons import END_POLICY, TerminationReason
from evener.proto.spec import HarnessSpec, Purpose, Sampling
from evener.proto.state import Stage
from evener.service.exits import complain
from evener.tokens.remarks import RENDER_TOOLS

TELLING: Final = frozenset(
    {end for end in TerminationReason if not END_POLICY[end].trainable} - {TerminationReason.CANCELLED}
    | {TerminationReason.CONTEXT_OVERFLOW}
)
"""Termination reasons that further sessions of the run are likely to have."""


TOKEN_BYTES: Final = 4
"""The approximate number of bytes in a token of a prompt."""
NO_TOOLS: Final = frozenset({"0", "none"})
"""Values of the option `tools` with which the harness offers none."""


class RunWarnings:
    """Warns once the engines of a run are known (nothing to train, unseen tools, no room), and once per telling termination reason."""

    def __init__(self, client: Client, run_request: RunRequest) -> None:
        self._client = client
        self._run_request = run_request
        self._known = False
        self._told: set[TerminationReason] = set()
        self._held = False

    async def observe(self, view: TaskView) -> None:
        """Note the progress of a task."""
        if view.stages.get(Stage.SEALED):
            await self.check_engines()
        if view.stages.get(Stage.QUEUED):
            if view.held and not self._held:
                complain(f"warning: new sessions wait: {view.held}")
            self._held = bool(view.held)
        for end in sorted(TELLING & view.ends.keys() - self._told):
            self._told.add(end)
            await self._tell(view.task_id, end)

    async def check_engines(self) -> None:
        """Ask for the engines, unless they are known already."""
        if self._known:
            return
        try:
            engines = await self._client.served_engines()
        except ClientError:
            return  # the run says what is wrong, if that stays so
        mine = [engine for engine in engines if engine.policy == self._run_request.policy]
        self._known = bool(mine)
        for warning in (self._untrainable(mine), without_tools(self._run_request, mine), too_long(self._run_request, mine)):
            if warning is not None:
                complain(f"warning: {warning}")

    def _untrainable(self, engines: Sequence[ServedEngine]) -> str | None:
        return None if self._run_request.purpose is Purpose.EVAL else untrainable(self._run_request.sampling, engines)

    async def _tell(self, task_id: str, end: TerminationReason) -> None:
        """Name the first session with this termination reason, and its detail."""
        with suppress(ClientError):  # the run's end says it again
            sessions = (await self._client.task(task_id)).sessions
            for session in (session for session in sessions if session.termination_reason is end):
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


def without_tools(run_request: RunRequest, engines: Iterable[ServedEngine]) -> str | None:
    """Return a warning if the policy will not see the tools of the run's harness. None: it will, or there are no tools."""
    if not _offers_tools(run_request.harness) or all(engine.renders_tools for engine in engines):
        return None
    harness = run_request.harness.name
    return f"the chat template of policy {run_request.policy} renders no tools, and harness {harness} has some: {RENDER_TOOLS}"


def too_long(run_request: RunRequest, engines: Sequence[ServedEngine]) -> str | None:
    """Return a warning if no engine can hold the first prompt of the run's harness. None: one may, or there is no engine."""
    wanted = harness(run_request.harness.name).first_prompt_bytes(run_request.harness.options) // TOKEN_BYTES
    longest = max((engine.context_length for engine in engines), default=wanted)
    if wanted <= longest or without_tools(run_request, engines):
        return None
    return (
        f"the first prompt of harness {run_request.harness.name} takes about {wanted} tokens, and no engine of policy "
        f"{run_request.policy} holds more than {longest}: give it a longer context, or take tools away by the harness's options "
        "(docs/harnesses.md)"
    )


def _offers_tools(spec: HarnessSpec) -> bool:
    """Return whether a harness offers tools, including those that need no trust, unless its options turn them off."""
    found = harness(spec.name)
    return (found.has_tools or found.probe is not None) and spec.options.get("tools") not in NO_TOOLS


def rule_of(engine: ServedEngine) -> LogprobRule:
    """Return the settings for which an engine's logprobs are exact."""
    return LogprobRule(any_temperature=engine.any_temperature, filters=engine.filters)


def _settings(sampling: Sampling) -> str:
    """Name the settings that restrict the distribution."""
    plain = Sampling()
    names = ("temperature", "top_p", "top_k", "min_p")
    return ", ".join(
        f"{name.replace('_', '-')} {getattr(sampling, name):g}" for name in names if getattr(sampling, name) != getattr(plain, name)
    )


def _condition(rule: LogprobRule) -> str:
    temperature = "at any --sampling.temperature above 0" if rule.any_temperature else "at --sampling.temperature 1"
    return temperature + ("" if rule.filters else ", without top-p, top-k and min-p")
