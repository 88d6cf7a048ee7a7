"""Creates the records of a call from what is known at each step."""

import time
from typing import Any

import msgspec

from evener.proto.reasons import CallFailure
from evener.proto.sessions import CallDelivered, CallFailed, CallOpened, CallUndelivered
from evener.provider_gateway.placement import PlacedCall


def opened(placed: PlacedCall) -> CallOpened:
    """Return the record of a call's placement. Its engine and the limit of its answer are set later."""
    request, canonical, started, tokens = placed.request, placed.request.canonical, placed.started, placed.tokens
    return CallOpened(
        session_id=started.session_id,
        attempt=started.attempt,
        start_id=started.start_id,
        call_id=placed.call_id,
        request_id=request.request_id,
        try_number=placed.sample.try_number,
        dialect=canonical.dialect,
        model=canonical.model,
        policy=placed.target.policy,
        engine_id="",
        placement=tokens.placement,
        prompt_delta_ids=placed.prompt_delta_ids,
        prompt_tokens=len(tokens.context),
        history_base=tokens.history_base,
        messages=placed.messages,
        message_count=len(canonical.messages),
        tools=placed.tools,
        tool_count=len(canonical.tools),
        tools_hidden=bool(canonical.tools) and not placed.policy.renderer.renders_tools,
        side_call=tokens.side_call,
        sub_agent=request.sub_agent,
        options=placed.policy.config.options,
        sampling=started.spec.sampling,
        requested_params=msgspec.json.encode(dict(canonical.requested_params)),
        cuts=tokens.cuts,
        retry_of=placed.sample.retry_of,
        images=placed.images,
        streamed=canonical.stream,
        reasoning_withheld=canonical.reasoning_withheld,
        n=canonical.n,
        body_digest=request.body_digest,
        opened_at=placed.opened_at,
    )


def failed(opened: CallOpened, reason: CallFailure, detail: str, status: int, sampled_tokens: int = 0) -> CallFailed:
    """Return the record of a call's failure at this time, with the number of tokens that were seen."""
    return CallFailed(
        **_of(opened, opened.request_id),
        reason=reason,
        detail=detail,
        status=status,
        failed_at=time.time(),
        sampled_tokens=sampled_tokens,
    )


def delivered(opened: CallOpened, request_id: str) -> CallDelivered:
    """Return the record that a transport retry gets a call's answer at this time."""
    return CallDelivered(**_of(opened, request_id), delivered_at=time.time())


def undelivered(opened: CallOpened, request_id: str) -> CallUndelivered:
    """Return the record that a request's harness disconnected before it had the answer."""
    return CallUndelivered(**_of(opened, request_id), undelivered_at=time.time())


def _of(opened: CallOpened, request_id: str) -> dict[str, Any]:
    return {"session_id": opened.session_id, "attempt": opened.attempt, "call_id": opened.call_id, "request_id": request_id}
