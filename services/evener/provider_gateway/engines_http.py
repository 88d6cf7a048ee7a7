"""GET /engines: the engines that this gateway has checked, and for which settings their logprobs are those of what they sample.

For whoever submits: what an engine cannot give can be told before anything is sampled.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.client.views import ServedEngine, ServedEngines
from evener.provider_gateway.slots import Pooled, Slots
from evener.service.auth import Secrets, operator_route
from evener.service.http import json_response


def engines_route(slots: Slots, secrets: Secrets) -> BaseRoute:
    """Return the endpoint; it wants the operator's token."""

    async def engines(_request: Request) -> Response:
        return json_response(ServedEngines(engines=tuple(_view(pooled) for _, pooled in sorted(slots.engines.items()))))

    return Route("/engines", operator_route(secrets, engines), methods=["GET"])


def _view(pooled: Pooled) -> ServedEngine:
    return ServedEngine(
        engine_id=pooled.joined.engine_id,
        policy=pooled.joined.policy,
        context_length=pooled.facts.context_length,
        any_temperature=pooled.rule.any_temperature,
        filters=pooled.rule.filters,
    )
