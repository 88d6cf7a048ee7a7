"""From a harness's request to the place where its call hangs, and who is to answer it."""

import time
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from evener.blobs.port import Blobs
from evener.dialects.canonical import CanonicalRequest, RequestError, parts_of
from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError
from evener.proto.ids import new_call_id
from evener.proto.spec import Target
from evener.provider_gateway.asked import Asked, too_long
from evener.provider_gateway.core import STOP_STATUS, Sample, target_of, unsupported
from evener.provider_gateway.live import Live
from evener.provider_gateway.looping import looping
from evener.provider_gateway.open_call import Way
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.threads import PLACING
from evener.templates.port import TemplateError
from evener.templates.special import texts_in
from evener.tokens.place import Placed, nowhere, place

MOST_CHARACTERS: Final = 4 << 20
"""Of the messages and tools of a call, images apart: a million tokens of prose."""


class PolicyUnknown(EvenerError):
    """Configure the policy at every gateway ([provider_gateway] policies): a partition's sessions may be of any."""


class Placing:
    """Places the calls of all sessions. Raises RequestError for what cannot be served, PolicyUnknown for what is to be served elsewhere."""

    def __init__(self, policies: Mapping[str, Policy], blobs: Blobs) -> None:
        self._policies = policies
        self._blobs = blobs

    async def place(self, live: Live, asked: Asked, sample: Sample) -> Way:
        """Return where a call goes and hangs; images that are new are stored by then."""
        target, policy = self._aim(live, asked)
        attempt, number = live.session.attempt, live.number()
        repeats = live.session.starts[attempt].spec.budgets.repeats
        found = await self._found(live, asked, policy, repeats)
        images = await self._keep_images(asked.request, found.placed)
        return _way(sample, target, policy, found, attempt=attempt, number=number, images=images)

    async def count(self, live: Live, asked: Asked) -> int:
        """Return how many tokens the prompt has."""
        _, policy = self._aim(live, asked)
        return len((await self._found(live, asked, policy, None)).placed.context)

    def nowhere(self, live: Live, asked: Asked, sample: Sample) -> Way:
        """Return the place of a call that could not be placed, for the record of its failure."""
        target, policy = self._aim(live, asked)
        return _way(sample, target, policy, _written(asked, nowhere()), attempt=live.session.attempt, number=live.number())

    def _aim(self, live: Live, asked: Asked) -> tuple[Target, Policy]:
        spec = live.session.starts[live.session.attempt].spec
        target = target_of(spec, asked.request.model)
        policy = self._policies.get(target.policy or spec.policy)
        if policy is None:
            msg = f"policy {target.policy or spec.policy!r} of run {spec.run_id!r} is not known to this gateway"
            raise PolicyUnknown(msg)
        if (error := unsupported(asked.request, "this policy", vision=policy.config.vision)) is not None:
            raise error
        return target, policy

    async def _found(self, live: Live, asked: Asked, policy: Policy, repeats: int | None) -> "Found":
        async with live.changing:  # the calls that it may extend stay as they are meanwhile
            return await PLACING.run(_find, live, asked, policy, repeats)

    async def _keep_images(self, request: CanonicalRequest, placed: Placed) -> tuple[BlobRef, ...]:
        """Store the images of the messages that are recorded. Those before them are stored already."""
        named = {part["digest"] for message in placed.messages for part in parts_of(message) if part["type"] == "image"}
        return tuple([await self._blobs.put(image.data) for image in request.images if image.digest in named])


class Found(Struct, frozen=True, eq=False):
    """What a thread finds out of a call."""

    placed: Placed
    messages: bytes
    tools: bytes | None
    looping: bool


def _find(live: Live, asked: Asked, policy: Policy, repeats: int | None) -> Found:
    return _written(asked, _place(live, asked, policy), loops=looping(asked.request.messages, repeats))


def _written(asked: Asked, placed: Placed, *, loops: bool = False) -> Found:
    """Return the place of a call with what its opening records: as JSON, which takes its time where it is long."""
    tools = asked.request.tools if placed.follows is None else ()
    messages = msgspec.json.encode(placed.messages)
    return Found(placed=placed, messages=messages, tools=msgspec.json.encode(tools) if tools else None, looping=loops)


def _place(live: Live, asked: Asked, policy: Policy) -> Placed:
    request = asked.request
    _check_length(asked)
    try:
        return place(
            live.session.forest,
            live.history,
            request.messages,
            request.tools,
            renderer=policy.renderer,
            options=policy.config.options,
            quirks=live.quirks,
            digests=request.digests,
            sub_agent=asked.sub_agent,
        )
    except TemplateError as cause:
        raise RequestError(str(cause.args[0]), field=asked.dialect.history, status=STOP_STATUS) from cause


def _check_length(asked: Asked) -> None:
    """Refuse what is longer than any context, before it is rendered and encoded."""
    found = sum(map(len, texts_in((asked.request.messages, asked.request.tools))))
    if found > MOST_CHARACTERS:
        raise too_long(asked, f"the messages and tools have {found} characters; at most {MOST_CHARACTERS} are served", None)


def _way(
    sample: Sample, target: Target, policy: Policy, found: Found, *, attempt: int, number: int, images: tuple[BlobRef, ...] = ()
) -> Way:
    return Way(
        target=target,
        policy=policy,
        placed=found.placed,
        messages=found.messages,
        tools=found.tools,
        attempt=attempt,
        call_id=new_call_id(),
        number=number,
        try_number=sample.try_number,
        retry_of=sample.retry_of,
        images=images,
        looping=found.looping,
        opened_at=time.time(),
    )
