"""The state machine of a weight update: every way through it with up to two engines."""

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from evener.trainer_bridge.updates import (
    COMMITS,
    ENDED_STAGES,
    ENGINE_NEXT,
    NEXT_STAGES,
    STAGE_WORK,
    AnswerKind,
    EngineAnswered,
    EngineStage,
    Update,
    UpdateStage,
    advance,
    begin,
)

WAYS = [("e1",), ("e1", "e2"), ()]


def answers(update: Update) -> Iterator[tuple[EngineAnswered, ...]]:
    """Yield all that the engines at work may answer. Without such engines: that the record is in the log."""
    ways = [(AnswerKind.DONE, False), (AnswerKind.WRONG, False), (AnswerKind.SILENT, False), (AnswerKind.SILENT, True)]

    def of(engine_id: str) -> list[EngineAnswered]:
        return [
            EngineAnswered(engine_id=engine_id, answer=answer, why="" if answer is AnswerKind.DONE else answer.value, hung=hung)
            for answer, hung in ways
        ]

    yield from product(*map(of, update.at_work))


def walk(engines: tuple[str, ...]) -> Iterator[list[Update]]:
    """Yield every history of an update from its beginning to its end."""
    paths = [[begin(engines)]]
    while paths:
        path = paths.pop()
        if path[-1].stage in ENDED_STAGES:
            yield path
        else:
            paths += [[*path, advance(path[-1], told)] for told in answers(path[-1])]


@pytest.mark.parametrize("engines", WAYS)
def test_every_history_follows_the_table_and_ends(engines: tuple[str, ...]) -> None:
    """No stage is entered from one that the table does not name, for updates and engines alike; nothing waits for ever."""
    for path in walk(engines):
        for before, after in pairwise(path):
            assert after.stage in NEXT_STAGES[before.stage]
            for engine_id, stage in after.engines.items():
                assert stage in engine_reachable(before.engines[engine_id], after.stage)


def engine_reachable(before: EngineStage, stage: UpdateStage) -> set[EngineStage]:
    """Return the stages in which an engine may be at a stage of the update: its answer, and what it is told upon the answers of all."""
    answered = set(ENGINE_NEXT[before].values()) if before in ENGINE_NEXT else {before}
    work, getting_it = STAGE_WORK.get(stage, (None, frozenset()))
    return {work if work and each in getting_it else each for each in answered}


def test_every_edge_of_the_tables_is_taken() -> None:
    """A way out that no history takes would be dead."""
    paths = [path for engines in WAYS for path in walk(engines)]
    taken = {(before.stage, after.stage) for path in paths for before, after in pairwise(path)}
    working = {update.engines[one] for path in paths for update in path for one in update.at_work}
    told = {(after.stage, before.engines[one]) for path in paths for before, after in pairwise(path) for one in after.at_work}

    assert taken == {(stage, after) for stage, following in NEXT_STAGES.items() for after in following}
    assert working == set(ENGINE_NEXT)
    assert {stage for stage, _ in told} == set(STAGE_WORK)


@pytest.mark.parametrize("engines", WAYS)
def test_what_is_committed_is_what_the_engines_have(engines: tuple[str, ...]) -> None:
    """Staged before any engine hears of it; published only if none showed it wrong and one has proven it; retired once all are restored."""
    for path in walk(engines):
        stages, final = [update.stage for update in path], path[-1]
        commits = [stage for stage in stages if stage in COMMITS]
        told = [number for number, update in enumerate(path) if EngineStage.LOADING in update.engines.values()]
        if told:
            assert stages.index(UpdateStage.STAGING) < told[0]
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
        final = path[-1]
        if final.stage is UpdateStage.RETIRED:
            assert set(final.leaving) == set(final.engines_in(EngineStage.LOST))
        elif final.stage is UpdateStage.REFUSED:
            assert final.leaving == ()
        else:
            assert set(final.leaving) == final.hung
        assert final.why.keys() >= set(final.leaving)


def test_a_policy_without_engines_is_published_at_once() -> None:
    """Engines that join later get the version."""
    (path,) = walk(())
    assert [update.stage for update in path] == [
        UpdateStage.PREPARING,
        UpdateStage.STAGING,
        UpdateStage.LOADING,
        UpdateStage.PUBLISHING,
        UpdateStage.PUBLISHED,
    ]


def test_an_answer_that_nobody_waits_for_is_a_bug() -> None:
    begun = begin(["e1"])
    done = [EngineAnswered(engine_id="e1")]
    with pytest.raises(KeyError):
        advance(begun)
    with pytest.raises(KeyError):
        advance(advance(begun, done), done)


def test_an_update_that_has_ended_does_not_continue() -> None:
    refused = advance(begin(["e1"]), [EngineAnswered(engine_id="e1", answer=AnswerKind.WRONG)])
    with pytest.raises(KeyError):
        advance(refused)
