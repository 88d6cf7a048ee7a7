"""A weight update as a state machine: which stage follows which, and what is to be done in each. Pure: no I/O, no clock.

`begin` and `advance` return an update as it is after a fact (an engine answered, or a record is in the log), with the actions that follow.
`rollout` carries the actions out, and keeps the time.

    PREPARING ─► STAGING ─► LOADING ─► PUBLISHING ─► PUBLISHED
      │   └───► REFUSED      │   └───► RESTORING ──► RETIRING ──► RETIRED
      └───────► UNREACHED ◄──┘
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace


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


NEXT: Final[dict[UpdateStage, frozenset[UpdateStage]]] = {
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
"""The stages that wait until their record is in the log. Exactly one stage follows each of them."""
ENDED: Final = frozenset(stage for stage, after in NEXT.items() if not after)


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


class Answer(StrEnum):
    """How an engine responded to the work of its stage."""

    DONE = "done"
    WRONG = "wrong"
    SILENT = "silent"
    """The engine could not be reached, or its deadline passed."""


ENGINE_NEXT: Final[dict[EngineStage, dict[Answer, EngineStage]]] = {
    EngineStage.PREPARING: {Answer.DONE: EngineStage.READY, Answer.WRONG: EngineStage.WRONG, Answer.SILENT: EngineStage.AWAY},
    EngineStage.LOADING: {Answer.DONE: EngineStage.PROVEN, Answer.WRONG: EngineStage.WRONG, Answer.SILENT: EngineStage.UNKNOWN},
    EngineStage.RESTORING: {Answer.DONE: EngineStage.RESTORED, Answer.WRONG: EngineStage.LOST, Answer.SILENT: EngineStage.LOST},
}
"""The stages in which an engine has work, and the stage that follows each answer."""


class EngineAnswered(Struct, frozen=True, kw_only=True):
    """A fact: an engine has answered, or its deadline has passed."""

    engine_id: str
    answer: Answer = Answer.DONE
    why: str = ""
    hung: bool = False
    """Whether the engine was silent until its deadline. It then leaves the fleet, unless it is restored."""


class RecordCommitted(Struct, frozen=True):
    """A fact: the record of the stage is in the log."""


class TellEngine(Struct, frozen=True):
    """An action: have an engine do the work of its stage."""

    engine_id: str
    stage: EngineStage


class CommitRecord(Struct, frozen=True):
    """An action: write the record of a stage."""

    stage: UpdateStage


class EvictEngine(Struct, frozen=True):
    """An action: remove an engine from the fleet."""

    engine_id: str
    why: str


Action = TellEngine | CommitRecord | EvictEngine


class Update(Struct, frozen=True, kw_only=True):
    """An update that is under way, or has ended."""

    stage: UpdateStage
    engines: dict[str, EngineStage]
    why: dict[str, str] = {}
    """Engine id to its last trouble."""
    hung: frozenset[str] = frozenset()

    def engines_in(self, *stages: EngineStage) -> tuple[str, ...]:
        """Return the ids of the engines that are in one of these stages."""
        return tuple(engine_id for engine_id, stage in self.engines.items() if stage in stages)


Step = tuple[Update, tuple[Action, ...]]


def begin(engine_ids: Iterable[str]) -> Step:
    """Return a new update of these engines, and its first actions."""
    update = Update(stage=UpdateStage.PREPARING, engines=dict.fromkeys(engine_ids, EngineStage.PREPARING))
    return _go_on(update, tuple(TellEngine(engine_id, EngineStage.PREPARING) for engine_id in update.engines))


def advance(update: Update, fact: EngineAnswered | RecordCommitted) -> Step:
    """Return the update after a fact, and its next actions. Raises KeyError for a fact that does not fit the stage."""
    if isinstance(fact, RecordCommitted):
        if update.stage not in COMMITS:
            raise KeyError(update.stage)
        (after,) = NEXT[update.stage]
        return _enter(update, after)
    engines = {**update.engines, fact.engine_id: ENGINE_NEXT[update.engines[fact.engine_id]][fact.answer]}
    why = {**update.why, fact.engine_id: fact.why} if fact.why else update.why
    hung = update.hung | {fact.engine_id} if fact.hung else update.hung
    return _go_on(replace(update, engines=engines, why=why, hung=hung), ())


def _go_on(update: Update, actions: tuple[Action, ...]) -> Step:
    """Enter the next stage once every engine has answered."""
    return (update, actions) if update.engines_in(*ENGINE_NEXT) else _enter(update, _after(update))


def _after(update: Update) -> UpdateStage:
    """Return the stage that follows a stage in which every engine has answered."""
    if update.stage is UpdateStage.RESTORING:
        return UpdateStage.RETIRING
    found, loading = set(update.engines.values()), update.stage is UpdateStage.LOADING
    if EngineStage.WRONG in found:
        return UpdateStage.RESTORING if loading else UpdateStage.REFUSED
    if found and (EngineStage.PROVEN if loading else EngineStage.READY) not in found:
        return UpdateStage.UNREACHED
    return UpdateStage.PUBLISHING if loading else UpdateStage.STAGING


def _enter(update: Update, stage: UpdateStage) -> Step:
    update = replace(update, stage=stage)
    match stage:
        case UpdateStage.LOADING:
            return _tell(update, EngineStage.LOADING, update.engines_in(EngineStage.READY))
        case UpdateStage.RESTORING:
            told = update.engines_in(EngineStage.PROVEN, EngineStage.UNKNOWN, EngineStage.WRONG)
            return _tell(update, EngineStage.RESTORING, told)
        case UpdateStage.STAGING | UpdateStage.PUBLISHING | UpdateStage.RETIRING:
            return update, (CommitRecord(stage),)
        case UpdateStage.PUBLISHED | UpdateStage.UNREACHED:
            leaving = tuple(engine_id for engine_id in update.engines if engine_id in update.hung)
        case _:
            leaving = update.engines_in(EngineStage.LOST)
    return update, tuple(EvictEngine(engine_id, update.why[engine_id]) for engine_id in leaving)


def _tell(update: Update, stage: EngineStage, engine_ids: tuple[str, ...]) -> Step:
    update = replace(update, engines={**update.engines, **dict.fromkeys(engine_ids, stage)})
    return _go_on(update, tuple(TellEngine(engine_id, stage) for engine_id in engine_ids))
