"""Cuts rows: root-to-leaf paths of segments as training samples, with the accounting of every sampled token. Version 3 of the rules."""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.proto.arrays import float32s, int32s, pack_float32, pack_int32, pack_uint8
from evener.proto.reasons import END_POLICY, CallFailure, ExclusionReason, TerminationReason
from evener.proto.sessions import Choice, Fidelity, FinishReason, RootReason, SegmentRef
from evener.proto.spec import Purpose, Strategy
from evener.proto.trajectories import Accounting, Row, RowKind
from evener.tokens.forest import Call, Forest
from evener.tokens.kinds import asked_again, kinds_of
from evener.tokens.session import SessionLog

ROW_RULE: Final = 3
"""The version of these rules, recorded with each trajectory."""

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")


ExclusionCounts = Counter[ExclusionReason | None]
"""The number of a segment's tokens by the reason why they are excluded. None: trained."""


class SessionRows(Struct, frozen=True, kw_only=True):
    """The rows of a session, with the accounting."""

    rows: tuple[Row, ...]
    branches: tuple[tuple[SegmentRef, ...], ...]
    """The segments of each row, from the root."""
    fates: dict[SegmentRef, ExclusionCounts]
    """The fates of all sampled segments, in the order of the log."""
    accounting: Accounting


def cut(
    session: SessionLog, end: TerminationReason, strategy: Strategy = Strategy.TREE, inconsistent: Collection[SegmentRef] = ()
) -> SessionRows:
    """Cut the rows of a session that ended with `end`. Branches without a trainable token give no row, but are counted.

    Nothing of the `inconsistent` segments is trained (`evener.tokens.inconsistencies`).
    """
    reasons = _Reasons(session, end, inconsistent)
    fates = {segment: Counter(reasons.of_segment(segment)) for segment in session.forest.segments()}
    segments = [segment for segment in fates if session.forest.calls[segment.call_id].opened.attempt == session.attempt]
    paths = _paths(session.forest, [segment for segment in segments if fates[segment][None]], segments, strategy)
    kinds = kinds_of(session, paths)
    rows: list[Row] = []
    trained: set[SegmentRef] = set()
    for path, kind in zip(paths, kinds, strict=True):
        rows.append(_row(session.forest, path, reasons, trained, kind))
        trained.update(path)
    return SessionRows(rows=tuple(rows), branches=tuple(map(tuple, paths)), fates=fates, accounting=_account(session, fates))


def digest(rows: Sequence[Row]) -> str:
    """Return the SHA-256 over all rows in their order. Equal rows have equal digests, in the gateway and in a rebuild."""
    header = _encoder.encode((None,) * len(rows))[: -len(rows) or None]
    hashed = hashlib.sha256(header)
    for row in rows:  # one by one: many long rows in one piece would keep the interpreter's lock for too long
        hashed.update(_encoder.encode(row))
    return hashed.hexdigest()


class _Reasons:
    """The one reason, per segment and per token, why a sampled token is not trained."""

    def __init__(self, session: SessionLog, end: TerminationReason, inconsistent: Collection[SegmentRef]) -> None:
        self._session = session
        collected = session.spec is not None and session.spec.purpose is Purpose.COLLECT
        self._trainable_end = END_POLICY[end].trainable or collected  # a collection keeps what there is: it is never trained
        self._inconsistent_segments = inconsistent

    def of_call(self, call: Call) -> ExclusionReason | None:
        """Return why nothing of a call is trained. None: each token has its own reason."""
        if call.opened.attempt != self._session.attempt:
            return ExclusionReason.EARLIER_ATTEMPT
        if not self._trainable_end:
            return ExclusionReason.UNTRAINABLE_END
        if call.opened.side_call is not None:
            return ExclusionReason.SIDE_CALL
        if call.opened.policy is None:
            return ExclusionReason.FROZEN
        return ExclusionReason.ORPHAN if self._session.forest.orphaned(call) else None

    def of_segment(self, segment: SegmentRef) -> list[ExclusionReason | None]:
        """Return the reason of each sampled token, None for a trainable one."""
        call = self._session.forest.calls[segment.call_id]
        choice = call.choices[segment.choice]
        size = len(int32s(choice.sampled_ids))
        whole = self.of_call(call)
        if whole is None and segment in self._inconsistent_segments:
            whole = ExclusionReason.INCONSISTENT
        if whole is None and choice.finish_reason is FinishReason.ABORTED:
            whole = ExclusionReason.ABORTED
        return _of_tokens(choice) if whole is None else [whole] * size


def _of_tokens(choice: Choice) -> list[ExclusionReason | None]:
    ids = int32s(choice.sampled_ids)
    reasons: list[ExclusionReason | None] = [None] * len(ids)
    for at in np.flatnonzero(int32s(choice.versions) < 0):
        reasons[at] = ExclusionReason.VERSION_UNKNOWN
    for at in np.flatnonzero(~np.isfinite(float32s(choice.logprobs)) | (ids < 0)):
        reasons[at] = ExclusionReason.INCONSISTENT
    for masked in choice.masked:
        for masked_at in range(max(masked.start, 0), min(masked.end, len(ids))):
            reasons[masked_at] = masked.reason
    return reasons


def _paths(forest: Forest, wanted: Sequence[SegmentRef], order: Sequence[SegmentRef], strategy: Strategy) -> list[list[SegmentRef]]:
    """Return the root-to-leaf paths that end in a wanted segment, in the order of rows. `order` has all segments as logged."""
    if strategy is Strategy.PER_CALL:
        return [forest.lineage(segment) for segment in wanted]
    lineages = {segment: forest.lineage(segment) for segment in wanted}
    inner = {segment for path in lineages.values() for segment in path[:-1]}
    paths = [path for segment, path in lineages.items() if segment not in inner]
    held = Counter(segment for path in paths for segment in path)
    place = {segment: at for at, segment in enumerate(order)}
    return sorted(paths, key=lambda path: min((place[segment] for segment in path if held[segment] == 1 and segment in place), default=-1))


def _row(forest: Forest, path: list[SegmentRef], reasons: _Reasons, trained: set[SegmentRef], kind: RowKind) -> Row:
    ids, mask, logprobs, versions, call_of = _Column(np.int32), _Column(np.uint8), _Column(np.float32), _Column(np.int32), _Column(np.int32)
    prompt_length = None
    for number, segment in enumerate(path):
        call = forest.calls[segment.call_id]
        given = forest.context(call) if number == 0 else call.prompt_delta_ids
        prompt_length = len(given) if prompt_length is None else prompt_length
        ids.add(given)
        for column, filler in ((mask, 0), (logprobs, np.nan), (versions, -1), (call_of, -1)):
            column.fill(len(given), filler)
        choice = call.choices[segment.choice]
        sampled = int32s(choice.sampled_ids)
        ids.add(sampled)
        own = [] if segment in trained else reasons.of_segment(segment)
        mask.add(np.fromiter((reason is None for reason in own), np.uint8, len(own)) if own else np.zeros(len(sampled), np.uint8))
        logprobs.add(float32s(choice.logprobs))
        versions.add(int32s(choice.versions))
        call_of.fill(len(sampled), number)
    root, last = forest.calls[path[0].call_id], forest.calls[path[-1].call_id]
    return Row(
        ids=pack_int32(ids.whole()),
        loss_mask=pack_uint8(mask.whole()),
        logprobs=pack_float32(logprobs.whole()),
        versions=pack_int32(versions.whole()),
        call_of=pack_int32(call_of.whole()),
        calls=tuple(segment.call_id for segment in path),
        prompt_length=prompt_length or 0,
        kind=kind,
        root=root.placement.root or RootReason.INCONSISTENT,
        fidelity=Fidelity.FED if all(forest.calls[s.call_id].fidelity is Fidelity.FED for s in path) else Fidelity.MATCHED,
        finish_reason=last.choices[path[-1].choice].finish_reason,
        policy=last.opened.policy or "",
        options=last.opened.options,
        sampling=last.opened.sampling,
    )


class _Column:
    """One array of a row, as a list of pieces."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = dtype
        self._pieces: list[NDArray[np.generic]] = []

    def add(self, piece: NDArray[np.generic]) -> None:
        self._pieces.append(piece)

    def fill(self, length: int, value: float) -> None:
        self._pieces.append(np.full(length, value, self._dtype))

    def whole(self) -> NDArray[np.generic]:
        return np.concatenate(self._pieces) if self._pieces else np.empty(0, self._dtype)


def _is_lost(call: Call) -> bool:
    """Return whether nobody knows what a call sampled. A gateway that lets its partition go says how many tokens there were."""
    if call.failed is None:
        return not call.ended
    return call.failed.reason is CallFailure.OWNER_LOST and not call.failed.sampled_tokens


def _account(session: SessionLog, fates: Mapping[SegmentRef, ExclusionCounts]) -> Accounting:
    excluded: Counter[ExclusionReason] = Counter()
    delivered = resampled = 0
    forest = session.forest
    again = asked_again(forest)
    for segment, fate in fates.items():
        delivered += fate[None]
        resampled += fate[None] * (segment.call_id in again)
        excluded.update({reason: tokens for reason, tokens in fate.items() if reason is not None})
    if unseen := session.unseen_tokens():
        excluded[ExclusionReason.INCONSISTENT] += unseen
    calls = forest.calls.values()
    if failed := sum(call.failed.sampled_tokens for call in calls if call.failed is not None):
        excluded[ExclusionReason.FAILED_TRY] = failed
    if beyond := sum(call.cut_tokens for call in calls):
        excluded[ExclusionReason.BUDGET] = beyond
    return Accounting(
        sampled=delivered + excluded.total(),
        delivered=delivered,
        excluded=dict(sorted(excluded.items())),
        lost_calls=sum(map(_is_lost, calls)),
        resampled=resampled,
        reinstated=sum(call.placement.reinstated_tokens for call in calls),
        side_calls=sum(call.opened.side_call is not None for call in calls),
        failed_calls=sum(call.failed is not None for call in calls),
        calls_without_tools=sum(call.opened.tools_hidden for call in calls),
    )
