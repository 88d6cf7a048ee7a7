"""Turns a harness's request into the place of its call in the session, and its target."""

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct, field, structs

from evener.blobs.port import Blobs
from evener.dialects.canonical import CanonicalRequest, Overflow, RequestError, parts_of
from evener.proto.arrays import inline, int32s, pack_int32
from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError
from evener.proto.ids import new_call_id
from evener.proto.patterns import BadPattern, SlowPattern
from evener.proto.sessions import CallOpened, SessionStarted
from evener.proto.spec import SessionSpec, Target
from evener.provider_gateway.core import STOP_STATUS, ParsedRequest, Sample, target_of, too_long, unsupported
from evener.provider_gateway.policies import Policy
from evener.provider_gateway.session import SessionRuntime
from evener.templates.port import PromptTooLong, TemplateError
from evener.templates.special import longest_context, written_characters
from evener.tokens.digests import Digest, Message, canonical_json
from evener.tokens.place import Placed, nowhere, place

MAX_PROMPT_CHARACTERS: Final = 4 << 20
"""The limit of a call's messages and tools as JSON without images: a million tokens of prose."""
MAX_REQUESTED_CHARACTERS: Final = 64 << 10
"""The limit of the requested parameters that a call's record holds: a harness may send any field, of any size."""
OMITTED_NAMES: Final = 20
OMITTED_NAME_CHARACTERS: Final = 100
SHARED_TOOLS_BYTES: Final = 128 << 10
TAG: Final = re.compile(r"\s*<([A-Za-z][\w-]*)(?:\s[^<>]*)?>")

log = structlog.get_logger()


class PolicyNotConfigured(EvenerError):
    """Configure the policy at every gateway ([provider_gateway] policies): the sessions of a partition may be of any policy."""


class PlacedCall(Struct, frozen=True, kw_only=True, eq=False):
    """A request, the place of its call, and its target."""

    request: ParsedRequest
    spec: SessionSpec
    target: Target
    policy: Policy
    tokens: Placed
    opened: CallOpened
    """The record of its placement. Its engine and the limit of its answer are set later."""
    looping: bool
    """Whether the history repeats itself more often than the session's budgets allow."""
    number: int
    """The number of calls and placements in the session since the take-over, so that concurrent calls have different seeds."""


class Placer(Struct, frozen=True, eq=False):
    """Places the calls of all sessions. Raises RequestError for what cannot be served, PolicyNotConfigured for another gateway's calls."""

    policies: Mapping[str, Policy]
    blobs: Blobs
    longest_context: Callable[[Target], int | None]
    """The longest context of the engines that serve a target, in tokens. None: none is known."""
    _told: set[str] = field(default_factory=set)
    """Unknown policies, by run, of which the operator was warned."""

    async def place(self, session: SessionRuntime, request: ParsedRequest, sample: Sample) -> PlacedCall:
        """Return the place and target of a call. New images are stored by then."""
        target, policy = self._aim(session, request)
        context = self.longest_context(target)
        number = session.next_number()
        placed = await session.look(_placed, session, request, sample, target=target, policy=policy, context=context, number=number)
        if request.canonical.images:
            images = await self._store_images(request.canonical, placed.tokens)
            return structs.replace(placed, opened=structs.replace(placed.opened, images=images))
        return placed

    async def count(self, session: SessionRuntime, request: ParsedRequest) -> int:
        """Return the number of tokens in the prompt."""
        target, policy = self._aim(session, request)
        return len((await session.look(_tokens_of, session, request, policy, self.longest_context(target))).context)

    def opened_nowhere(self, session: SessionRuntime, request: ParsedRequest, sample: Sample) -> CallOpened:
        """Return the opening of a call that could not be placed, for the record of its failure."""
        target, policy = self._aim(session, request)
        return _opened(session.started, request, sample, nowhere(), target=target, policy=policy)

    def _aim(self, session: SessionRuntime, request: ParsedRequest) -> tuple[Target, Policy]:
        spec = session.started.spec
        target = target_of(spec, request.canonical.model)
        policy = self.policies.get(target.policy or spec.policy)
        if policy is None:
            unknown = PolicyNotConfigured(f"policy {target.policy or spec.policy!r} of run {spec.run_id!r} is not known to this gateway")
            if unknown.args[0] not in self._told:
                self._told.add(unknown.args[0])
                log.error("policy_unknown", error=str(unknown))
            raise unknown
        if (error := unsupported(request.canonical, "this policy", vision=policy.config.vision)) is not None:
            raise error
        return target, policy

    async def _store_images(self, canonical: CanonicalRequest, tokens: Placed) -> tuple[BlobRef, ...]:
        """Store the images of the recorded messages. Those of earlier messages are stored already."""
        named = {part["digest"] for message in tokens.messages for part in parts_of(message) if part["type"] == "image"}
        return tuple([await self.blobs.put(image.data) for image in canonical.images if image.digest in named])


def _placed(
    session: SessionRuntime, request: ParsedRequest, sample: Sample, *, target: Target, policy: Policy, context: int | None, number: int
) -> PlacedCall:
    """Place a call, and create the record of it. Call it in a thread if the request is long."""
    started, tokens = session.started, _tokens_of(session, request, policy, context)
    opened = _opened(started, request, sample, tokens, target=target, policy=policy)
    if tokens.context is tokens.prompt_delta_ids:  # of a root: kept once, as long as the call is open
        ids = int32s(inline(opened.prompt_delta_ids))
        tokens = structs.replace(tokens, context=ids, prompt_delta_ids=ids)
    return PlacedCall(
        request=request,
        spec=started.spec,
        target=target,
        policy=policy,
        tokens=tokens,
        opened=opened,
        looping=looping(request.canonical.messages, started.spec.budgets.repeats),
        number=number,
    )


def _opened(
    started: SessionStarted, request: ParsedRequest, sample: Sample, tokens: Placed, *, target: Target, policy: Policy
) -> CallOpened:
    canonical = request.canonical
    return CallOpened(
        session_id=started.session_id,
        attempt=started.attempt,
        start_id=started.start_id,
        call_id=new_call_id(),
        request_id=request.request_id,
        try_number=sample.try_number,
        dialect=canonical.dialect,
        model=canonical.model,
        policy=target.policy,
        engine_id="",
        placement=tokens.placement,
        prompt_delta_ids=pack_int32(tokens.prompt_delta_ids),
        prompt_tokens=len(tokens.context),
        history_base=tokens.history_base,
        messages=msgspec.json.encode(tokens.messages),
        message_count=len(canonical.messages),
        tools=_tools(canonical) if canonical.tools and tokens.history_base is None else None,
        tool_count=len(canonical.tools),
        tools_hidden=bool(canonical.tools) and not policy.renderer.renders_tools,
        side_call=tokens.side_call,
        sub_agent=request.sub_agent,
        step=request.step,
        marks=request.marks,
        options=policy.config.options,
        sampling=started.spec.sampling,
        requested_params=_requested_params(canonical),
        cuts=tokens.cuts,
        retry_of=sample.retry_of,
        streamed=canonical.stream,
        reasoning_withheld=canonical.reasoning_withheld,
        n=canonical.n,
        body_digest=request.body_digest,
        opened_at=time.time(),
    )


def _requested_params(canonical: CanonicalRequest) -> bytes:
    """Return the requested parameters as JSON. Of parameters that are too large together, the size and the first names are recorded."""
    requested = dict(canonical.requested_params)
    if (characters := written_characters(requested)) > MAX_REQUESTED_CHARACTERS:
        names = [name[:OMITTED_NAME_CHARACTERS] for name in islice(requested, OMITTED_NAMES)]
        requested = {"omitted": {"characters": characters, "names": names}}
    return msgspec.json.encode(requested)


def _tools(canonical: CanonicalRequest) -> bytes:
    """Return the tools as JSON. Open calls share those of usual length, since the sessions of a run ask with the same tools."""
    tools = msgspec.json.encode(canonical.tools)
    return _shared(tools) if len(tools) <= SHARED_TOOLS_BYTES else tools


@lru_cache(maxsize=64)
def _shared(value: bytes) -> bytes:
    return value


def _tokens_of(session: SessionRuntime, request: ParsedRequest, policy: Policy, context: int | None) -> Placed:
    """Return where a call stands in its session, and its prompt as ids. A request longer than any context is refused unrendered."""
    canonical = request.canonical
    characters = written_characters(canonical.messages) + written_characters(canonical.tools)
    if characters > MAX_PROMPT_CHARACTERS:
        message = f"the messages and tools have {characters} characters; at most {MAX_PROMPT_CHARACTERS} are served"
        raise too_long(request.dialect, message, None)
    try:
        with longest_context(context):
            return place(
                session.log.forest,
                session.history,
                canonical.messages,
                canonical.tools,
                renderer=policy.renderer,
                options=policy.config.options,
                quirks=session.quirks,
                digests=canonical.digests,
                sub_agent=request.sub_agent,
                step=request.step,
            )
    except PromptTooLong as cause:
        overflow = None if cause.tokens is None or cause.limit is None else Overflow(asked=cause.tokens, limit=cause.limit)
        raise too_long(request.dialect, str(cause.args[0]), overflow) from cause
    except (TemplateError, BadPattern, SlowPattern) as cause:
        raise RequestError(str(cause.args[0]), field=request.dialect.history, status=STOP_STATUS) from cause


def looping(messages: Sequence[Message], repeats: int | None) -> bool:
    """Return whether the history ends with the same tool calls and results `repeats` times in a row, ignoring notes of the harness."""
    if repeats is None:
        return False
    last, count = None, 0
    results: list[Digest] = []
    """The results of the turn, the last one first."""
    for message in reversed(messages):
        if message.get("role") == "tool":
            results.append(_spell(message.get("content")))
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            this = _spell([(call.get("name"), call.get("arguments")) for call in message["tool_calls"]]) + b"".join(reversed(results))
            if last is not None and this != last:
                return False
            last, count = this, count + 1
            results.clear()
            if count == repeats:
                return True
        elif not _is_note(message):
            return False
    return False


def _is_note(message: Message) -> bool:
    """Return whether a message is the harness's own: a system message, or a user message that consists of tagged text."""
    if message.get("role") in {"system", "developer"}:
        return True
    content = message.get("content")
    return message.get("role") == "user" and isinstance(content, str) and _tagged(content.strip())


def _tagged(text: str) -> bool:
    """Return whether a text is `<tag>...</tag>`, once or more."""
    at = 0
    while at < len(text):
        tag = TAG.match(text, at)
        end = -1 if tag is None else text.find(f"</{tag[1]}>", tag.end())
        if tag is None or end < 0:
            return False
        at = end + len(f"</{tag[1]}>")
    return bool(text)


def _spell(value: Any) -> Digest:
    return hashlib.blake2b(canonical_json(value), digest_size=16).digest()
