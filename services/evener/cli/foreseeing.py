"""What can be known of a run before it has sampled anything."""

from collections.abc import Iterable

from evener.cli.submitting import Wish
from evener.client.client import Client
from evener.client.errors import ClientError
from evener.client.views import ServedEngine
from evener.engines.port import LogprobRule
from evener.proto.spec import Purpose, Sampling
from evener.service.exits import complain


class Foresight:
    """Warns once, as soon as the engines are known, that nothing of a run can be trained."""

    def __init__(self, client: Client, wish: Wish) -> None:
        self._client = client
        self._wish = wish
        self._known = wish.purpose is Purpose.EVAL

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
        if (warning := untrainable(self._wish.sampling, mine)) is not None:
            complain(f"warning: {warning}")


def untrainable(sampling: Sampling, engines: Iterable[ServedEngine]) -> str | None:
    """Return why nothing that these engines sample with these settings can be trained. None: something can, or there is no engine."""
    found = tuple(engines)
    if not found or any(rule_of(engine).exact_for(sampling) for engine in found):
        return None
    return (
        f"nothing of this run can be trained: with {_settings(sampling)} the logprobs that engine {found[0].engine_id} reports are not "
        f"those of what it samples. They are {_condition(rule_of(found[0]))}"
    )


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
