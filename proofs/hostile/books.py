"""The books when all is over: the audit of every chaos test, and that nothing was lost or given away."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from proofs.hostile.running import Site
from tests.support.log import Log

from evener.engines.scripted import LedgerEntry
from evener.proto.arrays import int32s
from evener.proto.sessions import CallClosed, CallFailed, FinishReason, SessionSealed
from evener.proto.spec import Purpose
from evener.proto.trajectories import GroupMerged

SHOWN: Final = 50


class Books(Struct, frozen=True, kw_only=True):
    """What was found."""

    faults: tuple[str, ...]
    lost: int
    """Tasks that were accepted and have no end, sessions that were started and have no seal, and sampled tokens that no call has."""
    tasks: int
    sessions: int
    sampled: int
    """Tokens, by the books."""
    failed_tries: int
    """Tokens that engines sampled in calls that failed or were aborted. They are not lost, as long as their call says so."""


async def read_books(site: Site) -> Books:
    """Read and audit the log of a site that has stopped."""
    log = await site.log()
    entries = [entry for engine in site.engines.values() for entry in engine.ledger]
    lost_tasks = [f"task {task_id} was accepted and has no end" for task_id in site.tasks if len(log.ended.get(task_id, ())) != 1]
    unsealed = [f"{name} has no seal" for name in log.sessions if not log.of_kind(name, SessionSealed)]
    unbooked, failed_tries = _unbooked(log, entries)
    tokens = [f"{count} tokens of call {call_id} are in no record" for call_id, count in unbooked.items()]
    faults = [*lost_tasks, *unsealed, *tokens, *await site.audit(), *_given_away(log)]
    return Books(
        faults=tuple(faults),
        lost=len(lost_tasks) + len(unsealed) + sum(unbooked.values()),
        tasks=len(log.submitted),
        sessions=len(log.sessions),
        sampled=sum(built[0].accounting.sampled for built in log.built.values()),
        failed_tries=failed_tries,
    )


def _unbooked(log: Log, entries: Iterable[LedgerEntry]) -> tuple[dict[str, int], int]:
    """Return the tokens of whole answers in the engines' ledgers that no record accounts for, by call.

    Also return the number of those of calls that failed or were aborted.
    """
    closed = Counter[str]()
    failed = set[str]()
    for name in log.sessions:
        for event in log.of_kind(name, CallClosed):
            closed[event.call_id] += sum(len(int32s(choice.sampled_ids)) for choice in event.choices)
            if any(choice.finish_reason is FinishReason.ABORTED for choice in event.choices):
                failed.add(event.call_id)  # its engine may have sent more than the gateway had read when the harness disconnected
        failed |= {event.call_id for event in log.of_kind(name, CallFailed)}
    sampled = Counter[str]()
    for entry in entries:
        if not entry.aborted:
            sampled[entry.request_id.rpartition("-")[0]] += len(entry.sampled_ids)
    missing = {call_id: count - closed[call_id] for call_id, count in sampled.items() if count > closed[call_id]}
    return {call_id: count for call_id, count in missing.items() if call_id not in failed}, sum(
        count for call_id, count in missing.items() if call_id in failed
    )


def _given_away(log: Log) -> Iterator[str]:
    """A session without one sampled token says nothing of the policy: it is in no group's baseline."""
    for groups in log.groups.values():
        for _, group in groups:
            if isinstance(group, GroupMerged) and group.purpose is Purpose.TRAIN:
                for member in group.members:
                    if member.excluded is None and member.scored is not None and not member.scored.trajectory.accounting.sampled:
                        yield f"{member.session_id}: it sampled nothing, and is merged with reward {member.reward}"
