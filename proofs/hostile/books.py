"""The books when all is over: the audit of every chaos test, and that nothing was lost or given away."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from proofs.hostile.running import Site
from tests.support.log import Log

from evener.engines.scripted import LedgerEntry
from evener.proto.arrays import length
from evener.proto.codec import AnyEvent
from evener.proto.reasons import CallFailure
from evener.proto.sessions import CallClosed, CallFailed, FinishReason, SessionSealed
from evener.proto.spec import Purpose
from evener.proto.trajectories import GroupMerged
from evener.provider_gateway.sampling import BUFFERED_STREAM_INTERVAL

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
    unseen: int
    """Tokens that engines sampled beyond what the gateway had read when it broke an answer off. They are not lost: nobody saw them."""


async def read_books(site: Site) -> Books:
    """Read and audit the log of a site that has stopped."""
    log = await site.log()
    entries = [entry for engine in site.engines.values() for entry in engine.ledger]
    lost_tasks = [f"task {task_id} was accepted and has no end" for task_id in site.tasks if len(log.ended.get(task_id, ())) != 1]
    unsealed = [f"{name} has no seal" for name in log.sessions if not log.of_kind(name, SessionSealed)]
    missing, unseen = unbooked((read.event for reads in log.sessions.values() for read in reads), entries, site.patience)
    tokens = [f"{count} tokens of call {call_id} are in no record" for call_id, count in missing.items()]
    faults = [*lost_tasks, *unsealed, *tokens, *await site.audit(), *_given_away(log)]
    return Books(
        faults=tuple(faults),
        lost=len(lost_tasks) + len(unsealed) + sum(missing.values()),
        tasks=len(log.submitted),
        sessions=len(log.sessions),
        sampled=sum(built[0].accounting.sampled for built in log.built.values()),
        unseen=unseen,
    )


def unbooked(events: Iterable[AnyEvent], entries: Iterable[LedgerEntry], patience: float = 1.0) -> tuple[dict[str, int], int]:
    """Return the tokens of the engines' ledgers that no record accounts for, by call, and the number of those that nobody could have seen.

    Of an answer that was broken off its engine may have sampled one event more than the gateway had read, or `patience` events on a machine
    that does much else. What a gateway had read that is gone without a word nobody knows.
    """
    booked, broken_off, owner_lost = Counter[str](), set[str](), set[str]()
    for event in events:
        if isinstance(event, CallClosed):
            booked[event.call_id] += sum(length(choice.sampled_ids) for choice in event.choices) + event.cut_tokens
            if event.cut_tokens or any(choice.finish_reason is FinishReason.ABORTED for choice in event.choices):
                broken_off.add(event.call_id)
        elif isinstance(event, CallFailed):
            booked[event.call_id] += event.sampled_tokens
            is_unknown = event.reason is CallFailure.OWNER_LOST and not event.sampled_tokens
            (owner_lost if is_unknown else broken_off).add(event.call_id)
    sampled, answers = Counter[str](), defaultdict[str, set[str]](set)
    for entry in entries:
        if not entry.probe:
            call_id = entry.request_id.rpartition("-")[0]
            sampled[call_id] += len(entry.sampled_ids)
            answers[call_id].add(entry.request_id.partition(".")[0])  # its pieces are one answer
    missing, unseen = dict[str, int](), 0
    for call_id, count in sampled.items():
        left = count - booked[call_id]
        an_event_each = patience * BUFFERED_STREAM_INTERVAL * len(answers[call_id])
        excused = left if call_id in owner_lost else an_event_each if call_id in broken_off else 0
        if left > excused:
            missing[call_id] = left
        elif left > 0:
            unseen += left
    return missing, unseen


def _given_away(log: Log) -> Iterator[str]:
    """A session without one sampled token says nothing of the policy: it is in no group's baseline."""
    for groups in log.groups.values():
        for _, group in groups:
            if isinstance(group, GroupMerged) and group.purpose is Purpose.TRAIN:
                for member in group.members:
                    if member.excluded is None and member.scored is not None and not member.scored.trajectory.accounting.sampled:
                        yield f"{member.session_id}: it sampled nothing, and is merged with reward {member.reward}"
