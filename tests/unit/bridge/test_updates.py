"""The state machine of a weight update: every way through it with up to two engines."""

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from evener.trainer_bridge.updates import (
    COMMITS,
    ENDED,
    ENGINE_NEXT,
    NEXT,
    Action,
    Answer,
    CommitRecord,
    EngineAnswered,
    EngineStage,
    EvictEngine,
    RecordCommitted,
    Step,
    TellEngine,
    Update,
    UpdateStage,
    advance,
    begin,
)

WAYS = [("e1",), ("e1", "e2"), ()]


def facts(update: Update) -> Iterator[EngineAnswered | RecordCommitted]:
    """Yield everything that may happen next."""
    if update.stage in COMMITS:
        yield RecordCommitted()
    for engine_id, answer, hung in product(update.engines_in(*ENGINE_NEXT), Answer, (False, True)):
        if answer is Answer.SILENT or not hung:
            yield EngineAnswered(engine_id=engine_id, answer=answer, why="" if answer is Answer.DONE else answer.value, hung=hung)


def walk(engines: tuple[str, ...]) -> Iterator[list[Step]]:
    """Yield every history of an update from its beginning to its end."""
    paths = [[begin(engines)]]
    while paths:
        path = paths.pop()
        update, _ = path[-1]
        following = [advance(update, fact) for fact in facts(update)]
        if not following:
            yield path
        paths += [[*path, step] for step in following]


def stages(path: list[Step]) -> list[UpdateStage]:
    """Return the stages of a history, each once in a row, those passed through in one step left out."""
    seen = [update.stage for update, _ in path]
    return [stage for number, stage in enumerate(seen) if not number or stage is not seen[number - 1]]


def actions(path: list[Step]) -> list[Action]:
    return [action for _, following in path for action in following]


@pytest.mark.parametrize("engines", WAYS)
def test_every_history_follows_the_table_and_ends(engines: tuple[str, ...]) -> None:
    """No stage is entered from one that the table does not name, for updates and engines alike; nothing waits for ever."""
    for path in walk(engines):
        assert path[-1][0].stage in ENDED
        for (before, _), (after, _) in pairwise(path):
            assert after.stage is before.stage or after.stage in reachable(before.stage)
            for engine_id, stage in after.engines.items():
                assert stage in engine_reachable(before.engines[engine_id])


def reachable(stage: UpdateStage) -> set[UpdateStage]:
    """Return the stages that may follow at once: LOADING of no engine is passed through in one step."""
    return {later for after in NEXT[stage] for later in ({after} | set(NEXT[after]) if after is UpdateStage.LOADING else {after})}


def engine_reachable(stage: EngineStage) -> set[EngineStage]:
    """Return the stages in which an engine may be after one fact: its answer, and what it is told upon the last answer."""
    told = {EngineStage.READY: EngineStage.LOADING} | dict.fromkeys(
        (EngineStage.PROVEN, EngineStage.UNKNOWN, EngineStage.WRONG), EngineStage.RESTORING
    )
    answered = set(ENGINE_NEXT.get(stage, {}).values())
    return {stage} | answered | {told[each] for each in {stage, *answered} if each in told}


def test_every_edge_of_the_tables_is_taken() -> None:
    """A way out that no history takes would be dead."""
    taken, answered = set[tuple[UpdateStage, UpdateStage]](), set[tuple[EngineStage, EngineStage]]()
    for engines in WAYS:
        for path in walk(engines):
            for (before, _), (after, _) in pairwise(path):
                taken |= {(before.stage, after.stage)} if after.stage in NEXT[before.stage] else set()
                answered |= {(before.engines[one], after.engines[one]) for one in engines}

    assert {(stage, after) for stage, following in NEXT.items() for after in following} <= taken
    assert {(stage, after) for stage, answers in ENGINE_NEXT.items() for after in answers.values()} <= answered


@pytest.mark.parametrize("engines", WAYS)
def test_what_is_committed_is_what_the_engines_have(engines: tuple[str, ...]) -> None:
    """Staged before any engine hears of it; published only if none showed it wrong and one has proven it; retired once all are restored."""
    for path in walk(engines):
        done, final = actions(path), path[-1][0]
        commits = [action.stage for action in done if isinstance(action, CommitRecord)]
        told = [number for number, action in enumerate(done) if isinstance(action, TellEngine) and action.stage is EngineStage.LOADING]
        if told:
            assert done.index(CommitRecord(UpdateStage.STAGING)) < told[0]
        match final.stage:
            case UpdateStage.PUBLISHED:
                assert commits == [UpdateStage.STAGING, UpdateStage.PUBLISHING]
                assert set(final.engines.values()) <= {EngineStage.PROVEN, EngineStage.AWAY, EngineStage.UNKNOWN}
                assert not engines or EngineStage.PROVEN in final.engines.values()
            case UpdateStage.RETIRED:
                assert commits == [UpdateStage.STAGING, UpdateStage.RETIRING]
                assert set(final.engines.values()) <= {EngineStage.RESTORED, EngineStage.LOST, EngineStage.AWAY}
            case UpdateStage.REFUSED:
                assert commits == []
                assert EngineStage.WRONG in final.engines.values()
            case _:
                assert final.stage is UpdateStage.UNREACHED
                assert set(final.engines.values()) <= {EngineStage.AWAY, EngineStage.UNKNOWN}


@pytest.mark.parametrize("engines", WAYS)
def test_engines_leave_that_are_lost_or_hang_and_no_others(engines: tuple[str, ...]) -> None:
    """One that only could not be reached gets the version when it comes back."""
    for path in walk(engines):
        final = path[-1][0]
        left = {action.engine_id for action in actions(path) if isinstance(action, EvictEngine)}
        if final.stage is UpdateStage.RETIRED:
            assert left == set(final.engines_in(EngineStage.LOST))
        elif final.stage is UpdateStage.REFUSED:
            assert left == set()
        else:
            assert left == final.hung


def test_a_policy_without_engines_is_published_at_once() -> None:
    """Engines that join later get the version."""
    (path,) = walk(())
    assert stages(path) == [UpdateStage.STAGING, UpdateStage.PUBLISHING, UpdateStage.PUBLISHED]


def test_a_fact_that_nobody_waits_for_is_a_bug() -> None:
    update, _ = begin(["e1"])
    with pytest.raises(KeyError):
        advance(update, RecordCommitted())
    with pytest.raises(KeyError):
        advance(advance(update, EngineAnswered(engine_id="e1"))[0], EngineAnswered(engine_id="e1"))
