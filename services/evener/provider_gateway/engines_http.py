"""GET /engines: the engines that this gateway has checked, so that a submission can warn of what they cannot give.

The answer says for which settings their logprobs are exact, and whether their policy's chat template shows tools.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.client.views import ServedEngine, ServedEngines
from evener.provider_gateway.engine_handle import EngineHandle
from evener.provider_gateway.engine_scheduler import EngineScheduler
from evener.provider_gateway.policies import Policy
from evener.service.auth import Secrets, operator_route
from evener.service.http import json_response


def engines_route(scheduler: EngineScheduler, policies: Mapping[str, Policy], secrets: Secrets) -> BaseRoute:
    """Return the endpoint, which requires the operator's token."""

    async def engines(_request: Request) -> Response:
        return json_response(ServedEngines(engines=tuple(_view(engine, policies) for _, engine in sorted(scheduler.engines.items()))))

    return Route("/engines", operator_route(secrets, engines), methods=["GET"])


def _view(engine: EngineHandle, policies: Mapping[str, Policy]) -> ServedEngine:
    policy = policies.get(engine.joined.policy or "")
    return ServedEngine(
        engine_id=engine.joined.engine_id,
        policy=engine.joined.policy,
        context_length=engine.facts.context_length,
        any_temperature=engine.rule.any_temperature,
        filters=engine.rule.filters,
        renders_tools=policy is None or policy.renderer.renders_tools,
    )
