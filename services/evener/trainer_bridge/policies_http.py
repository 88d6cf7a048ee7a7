"""Policies over HTTP: POST /policies/{name}/versions publishes weights; GET /policies and /policies/{name} describe the versions."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from evener.bus.port import Fenced
from evener.client.views import PolicyList, PolicyView, Publish, VersionView
from evener.engines.port import EngineError
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fields import shared_fields
from evener.proto.fleet import PolicyPublished, PolicyRetired, PolicyStaged
from evener.proto.ids import TASK_ID_PATTERN
from evener.service.auth import Secrets, control_route
from evener.service.http import decoded, error_response, json_response
from evener.service.principals import Role
from evener.service.published import Version
from evener.trainer_bridge.canary import CanaryFailed
from evener.trainer_bridge.engines import PolicyEngines
from evener.trainer_bridge.policies import Policies, VersionRefused
from evener.trainer_bridge.publisher import PolicyNotOwned, PolicyUnknown, Publisher
from evener.trainer_bridge.rollout import NotUpdatable
from evener.trainer_bridge.weights import WeightsRefused

REFUSALS: Final[tuple[tuple[type[EvenerError], int, str], ...]] = (
    (PolicyUnknown, HTTPStatus.NOT_FOUND, "policy"),
    (VersionRefused, HTTPStatus.CONFLICT, "version"),
    (NotUpdatable, HTTPStatus.CONFLICT, "policy"),
    (WeightsRefused, HTTPStatus.UNPROCESSABLE_ENTITY, "path"),
    (CanaryFailed, HTTPStatus.UNPROCESSABLE_ENTITY, "canary"),
    (EngineError, HTTPStatus.BAD_GATEWAY, "canary"),
)


_bodies: Final = msgspec.json.Decoder(Publish)


def policy_routes(secrets: Secrets, policies: Policies, engines: PolicyEngines, publisher: Publisher) -> Sequence[BaseRoute]:
    """Return the endpoints for policies. Publishing needs a trainer."""

    async def publish(request: Request) -> Response:
        name = request.path_params["name"]
        if not TASK_ID_PATTERN.match(name):
            return error_response(400, f"{name!r} is not a name for a policy", "policy")
        body = await decoded(request, _bodies)
        path = str(await asyncio.to_thread(Path(body.path).resolve))  # a link may lead elsewhere later
        try:
            # a trainer that disconnects does not leave an update half done
            answer = await asyncio.shield(asyncio.ensure_future(publisher.publish(name, replace(body, path=path))))
        except (Recoverable, Fenced) as later:  # fenced: another bridge publishes now
            elsewhere = "policy" if isinstance(later, PolicyNotOwned) else None
            return error_response(503, str(later), elsewhere, headers={"retry-after": "1"})
        except EvenerError as refused:
            status, field = next(((status, field) for kind, status, field in REFUSALS if isinstance(refused, kind)), (500, None))
            return error_response(status, str(refused), field)
        return json_response(answer, 201 if answer.new else 200)

    async def listed(request: Request) -> Response:  # noqa: ARG001 (a route's handler)
        await policies.refresh()
        return json_response(PolicyList(policies=tuple(_view(name, policies, engines) for name in policies.policies())))

    async def one(request: Request) -> Response:
        await policies.refresh()
        name = request.path_params["name"]
        if name not in {*policies.policies(), *engines.policies()}:
            return error_response(404, f"nothing was published for policy {name}, and no engine samples it")
        return json_response(_view(name, policies, engines))

    return (
        Route("/policies/{name}/versions", control_route(secrets, publish, Role.TRAINER), methods=["POST"]),
        Route("/policies", control_route(secrets, listed, Role.VIEWER), methods=["GET"]),
        Route("/policies/{name}", control_route(secrets, one, Role.VIEWER), methods=["GET"]),
    )


def _view(name: str, policies: Policies, engines: PolicyEngines) -> PolicyView:
    return PolicyView(
        policy=name,
        newest=policies.newest(name),
        versions=tuple(_version(said) for said in policies.versions(name)),
        engines=tuple(engine.engine_id for engine in engines.of(name)),
    )


def _version(said: Version) -> VersionView:
    match said:
        case PolicyStaged():
            state, at = "staged", said.staged_at
        case PolicyPublished():
            state, at = "published", said.published_at
        case PolicyRetired():
            state, at = "retired", said.retired_at
    return VersionView(**shared_fields(said, VersionView), state=state, at=at)
