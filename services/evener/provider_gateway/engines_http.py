"""GET /engines: the engines that this gateway has checked, for whoever submits: what they cannot give is told before anything is sampled.

For which settings their logprobs are those of what they sample, and whether their policy's chat template shows tools.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.client.views import ServedEngine, ServedEngines
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.slots import Pooled, Slots
from evener.service.auth import Secrets, operator_route
from evener.service.http import json_response


def engines_route(slots: Slots, policies: Mapping[str, Policy], secrets: Secrets) -> BaseRoute:
    """Return the endpoint; it wants the operator's token."""

    async def engines(_request: Request) -> Response:
        return json_response(ServedEngines(engines=tuple(_view(pooled, policies) for _, pooled in sorted(slots.engines.items()))))

    return Route("/engines", operator_route(secrets, engines), methods=["GET"])


def _view(pooled: Pooled, policies: Mapping[str, Policy]) -> ServedEngine:
    policy = policies.get(pooled.joined.policy or "")
    return ServedEngine(
        engine_id=pooled.joined.engine_id,
        policy=pooled.joined.policy,
        context_length=pooled.facts.context_length,
        any_temperature=pooled.rule.any_temperature,
        filters=pooled.rule.filters,
        renders_tools=policy is None or policy.renderer.renders_tools,
    )
