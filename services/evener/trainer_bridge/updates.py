"""A weight update as a state machine: which stage follows which, and the work of each stage. Pure: no I/O, no clock.

`begin` and `advance` return an update at a stage. `rollout` does the work of the stage, and keeps the time: it commits a record, or waits
until all engines at work have answered.

    PREPARING ─► STAGING ─► LOADING ─► PUBLISHING ─► PUBLISHED
      │   └───► REFUSED      │   └───► RESTORING ──► RETIRING ──► RETIRED
      └───────► UNREACHED ◄──┘
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct


class UpdateStage(StrEnum):
    """The stage of the update of a policy's engines to a version."""

    PREPARING = "preparing"
    """Each engine is given the version before, if it has another one, and scores the canary."""
    STAGING = "staging"
    """PolicyStaged is being committed. No engine hears of the version before that."""
    LOADING = "loading"
    """Each engine that is ready loads the version and proves it by the canary."""
    PUBLISHING = "publishing"
    """PolicyPublished is being committed."""
    RESTORING = "restoring"
    """An engine failed the proof: each engine that was to load the version is given the version before again."""
    RETIRING = "retiring"
    """PolicyRetired is being committed."""
    PUBLISHED = "published"
    RETIRED = "retired"
    UNREACHED = "unreached"
    """No engine answers. A version that is staged is taken up again later."""
    REFUSED = "refused"
    """An engine accepts no weights, or refused the canary. No engine was told of the version."""


NEXT_STAGES: Final[dict[UpdateStage, frozenset[UpdateStage]]] = {
    UpdateStage.PREPARING: frozenset({UpdateStage.STAGING, UpdateStage.UNREACHED, UpdateStage.REFUSED}),
    UpdateStage.STAGING: frozenset({UpdateStage.LOADING}),
    UpdateStage.LOADING: frozenset({UpdateStage.PUBLISHING, UpdateStage.RESTORING, UpdateStage.UNREACHED}),
    UpdateStage.PUBLISHING: frozenset({UpdateStage.PUBLISHED}),
    UpdateStage.RESTORING: frozenset({UpdateStage.RETIRING}),
    UpdateStage.RETIRING: frozenset({UpdateStage.RETIRED}),
    UpdateStage.PUBLISHED: frozenset(),
    UpdateStage.RETIRED: frozenset(),
    UpdateStage.UNREACHED: frozenset(),
    UpdateStage.REFUSED: frozenset(),
}
COMMITS: Final = frozenset({UpdateStage.STAGING, UpdateStage.PUBLISHING, UpdateStage.RETIRING})
"""The stages in which a record is committed."""
ENDED_STAGES: Final = frozenset(stage for stage, after in NEXT_STAGES.items() if not after)


class EngineStage(StrEnum):
    """The stage of one engine in an update."""

    PREPARING = "preparing"
    READY = "ready"
    """The engine has the version before, and has scored the canary."""
    AWAY = "away"
    """The engine gave no answer in time before the version was loaded. It takes no part."""
    LOADING = "loading"
    PROVEN = "proven"
    UNKNOWN = "unknown"
    """The engine gave no answer in time while it loaded. It may have either version."""
    WRONG = "wrong"
    """The engine refused, or its scores of the canary are not those of the version."""
    RESTORING = "restoring"
    RESTORED = "restored"
    LOST = "lost"
    """The engine's weights are unknown."""


class AnswerKind(StrEnum):
    """How an engine responded to the work of its stage."""

    DONE = "done"
    WRONG = "wrong"
    SILENT = "silent"
    """The engine could not be reached, or its deadline passed."""


ENGINE_NEXT: Final[dict[EngineStage, dict[AnswerKind, EngineStage]]] = {
    EngineStage.PREPARING: {AnswerKind.DONE: EngineStage.READY, AnswerKind.WRONG: EngineStage.WRONG, AnswerKind.SILENT: EngineStage.AWAY},
    EngineStage.LOADING: {AnswerKind.DONE: EngineStage.PROVEN, AnswerKind.WRONG: EngineStage.WRONG, AnswerKind.SILENT: EngineStage.UNKNOWN},
    EngineStage.RESTORING: {AnswerKind.DONE: EngineStage.RESTORED, AnswerKind.WRONG: EngineStage.LOST, AnswerKind.SILENT: EngineStage.LOST},
}
"""The stages in which an engine has work, and the stage that follows each answer."""


STAGE_WORK: Final[dict[UpdateStage, tuple[EngineStage, frozenset[EngineStage]]]] = {
    UpdateStage.LOADING: (EngineStage.LOADING, frozenset({EngineStage.READY})),
    UpdateStage.RESTORING: (EngineStage.RESTORING, frozenset({EngineStage.PROVEN, EngineStage.UNKNOWN, EngineStage.WRONG})),
}
"""The stages at whose beginning engines get work: the engines' stage from then on, and the stages of the engines that get it."""


class EngineAnswered(Struct, frozen=True, kw_only=True):
    """An engine has answered, or its deadline has passed."""

    engine_id: str
    answer: AnswerKind = AnswerKind.DONE
    why: str = ""
    hung: bool = False
    """Whether the engine was silent until its deadline. It then leaves the fleet, unless it is restored."""


class Update(Struct, frozen=True, kw_only=True):
    """An update that is under way, or has ended."""

    stage: UpdateStage
    engines: dict[str, EngineStage]
    why: dict[str, str] = {}
    """Engine id to its last trouble."""
    hung: frozenset[str] = frozenset()

    @property
    def at_work(self) -> tuple[str, ...]:
        """The ids of the engines that have work in this stage."""
        return self.engines_in(*ENGINE_NEXT)

    @property
    def leaving(self) -> tuple[str, ...]:
        """The ids of the engines that leave the fleet when the update ends at this stage: they hang, or their weights are unknown."""
        if self.stage in {UpdateStage.PUBLISHED, UpdateStage.UNREACHED}:
            return tuple(engine_id for engine_id in self.engines if engine_id in self.hung)
        return self.engines_in(EngineStage.LOST)

    def engines_in(self, *stages: EngineStage) -> tuple[str, ...]:
        """Return the ids of the engines that are in one of these stages."""
        return tuple(engine_id for engine_id, stage in self.engines.items() if stage in stages)


def begin(engine_ids: Iterable[str]) -> Update:
    """Return a new update of these engines."""
    return Update(stage=UpdateStage.PREPARING, engines=dict.fromkeys(engine_ids, EngineStage.PREPARING))


def advance(update: Update, answers: Sequence[EngineAnswered] = ()) -> Update:
    """Return the update at its next stage, once its record is in the log, or with the answers of all engines at work.

    Raises KeyError for answers that are not those of the engines at work, and for an update that has ended.
    """
    if update.stage in ENDED_STAGES or {each.engine_id for each in answers} != set(update.at_work):
        raise KeyError(update.stage)
    engines = update.engines | {each.engine_id: ENGINE_NEXT[update.engines[each.engine_id]][each.answer] for each in answers}
    stage = _after(update.stage, set(engines.values()))
    work, getting_it = STAGE_WORK.get(stage, (None, frozenset()))
    return Update(
        stage=stage,
        engines={engine_id: work if work and found in getting_it else found for engine_id, found in engines.items()},
        why=update.why | {each.engine_id: each.why for each in answers if each.why},
        hung=update.hung | {each.engine_id for each in answers if each.hung},
    )


def _after(stage: UpdateStage, found: Collection[EngineStage]) -> UpdateStage:
    """Return the stage that follows a stage after which engines were found in these stages."""
    if len(NEXT_STAGES[stage]) == 1:
        return next(iter(NEXT_STAGES[stage]))
    loading = stage is UpdateStage.LOADING
    if EngineStage.WRONG in found:
        return UpdateStage.RESTORING if loading else UpdateStage.REFUSED
    if found and (EngineStage.PROVEN if loading else EngineStage.READY) not in found:
        return UpdateStage.UNREACHED
    return UpdateStage.PUBLISHING if loading else UpdateStage.STAGING
