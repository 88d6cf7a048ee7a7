"""What a session has spent of its budgets: its closed calls, according to the log, and its open calls, as they sample. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from evener.proto.errors import EvenerError
from evener.proto.reasons import TerminationReason
from evener.proto.spec import Budgets
from evener.tokens.session import SessionLog

FEWEST_TOKENS: Final = 1
"""The number of tokens reserved for each answer of an open call, so that none is empty."""


class BudgetSpent(EvenerError):
    """Give the run larger budgets if its agents are to continue."""

    def __init__(self, reason: TerminationReason) -> None:
        super().__init__(f"the session is at its end: {reason}")
        self.reason = reason


class Spent(Struct, frozen=True):
    """The use that the calls of one attempt make of its budgets."""

    calls: int = 0
    turns: int = 0
    """The number of calls that extend their parent."""
    tokens: int = 0
    """The number of sampled tokens."""


class Drawn(Struct):
    """The use that one open call makes of the budgets."""

    extends: bool
    tokens: list[int]
    """The number of tokens sampled so far, for each answer."""

    @property
    def held(self) -> int:
        """The number of tokens that no other call can have."""
        return sum(max(FEWEST_TOKENS, drawn) for drawn in self.tokens)


class SessionBudget:
    """The budgets of one session. Concurrent calls cannot overspend them together, and none waits for another.

    A call that samples alone may have all that is left. When several sample, each draws tokens as they come, and the budget's last token
    ends all their answers.
    """

    def __init__(self, session: SessionLog) -> None:
        self._session = session
        self._open: dict[str, Drawn] = {}
        self._closed: tuple[int, Spent] | None = None
        """The attempt, and what its closed calls took. None: to be counted again."""

    @contextmanager
    def reserve(self, call_id: str, *, extends: bool, answers: int, looping: bool = False) -> Iterator[None]:
        """Count a call as open in this block. Afterwards the log alone says what it used. Raises BudgetSpent."""
        budgets = self._budgets
        is_limited = (budgets.tokens, budgets.calls, budgets.turns) != (None, None, None)
        end = exhausted(self._taken(), budgets, answers=answers) if is_limited else None
        if end is None and looping:
            end = TerminationReason.LOOPING
        if end is not None:
            raise BudgetSpent(end)
        self._open[call_id] = Drawn(extends=extends, tokens=[0] * answers)
        try:
            yield
        finally:
            self._open.pop(call_id, None)
            self._closed = None

    def share(self, call_id: str) -> int | None:
        """Return how many tokens each answer of an open call can have if no other call draws any. None: there is no limit."""
        if (budget := self._budgets.tokens) is None:
            return None
        mine = self._open[call_id]
        return (budget - self._taken().tokens + mine.held) // len(mine.tokens)

    def draw(self, call_id: str, answer: int, tokens: int) -> int:
        """Take sampled tokens of an answer out of the budget; return how many of them the budget still had."""
        if (budget := self._budgets.tokens) is None:
            return tokens
        mine = self._open[call_id]
        before, free = mine.held, budget - self._taken().tokens
        mine.tokens[answer] += tokens
        over = max(0, mine.held - before - free)
        mine.tokens[answer] -= over
        return tokens - over

    @property
    def _budgets(self) -> Budgets:
        spec = self._session.spec
        return Budgets() if spec is None else spec.budgets

    def _taken(self) -> Spent:
        closed, others = self._by_closed_calls(), self._open.values()
        return Spent(
            calls=closed.calls + len(others),
            turns=closed.turns + sum(one.extends for one in others),
            tokens=closed.tokens + sum(one.held for one in others),
        )

    def _by_closed_calls(self) -> Spent:
        if self._closed is None or self._closed[0] != self._session.attempt:
            known = self._session.forest.calls
            for call_id in [one for one in self._open if one in known and known[one].ended]:  # committed, and not freed yet
                del self._open[call_id]
            self._closed = self._session.attempt, spent(self._session)
        return self._closed[1]


def spent(session: SessionLog) -> Spent:
    """Return what the closed calls of the current attempt used."""
    attempt = session.attempt
    closed = [call for call in session.forest.calls.values() if call.opened.attempt == attempt and call.closed is not None]
    return Spent(
        calls=len(closed),
        turns=sum(call.placement.parent is not None for call in closed),
        tokens=sum(call.answer_tokens for call in closed),
    )


def exhausted(taken: Spent, budgets: Budgets, *, answers: int = 1) -> TerminationReason | None:
    """Return the budget that leaves no room for another call with this many answers, or None."""
    if budgets.tokens is not None and taken.tokens + answers * FEWEST_TOKENS > budgets.tokens:
        return TerminationReason.TOKEN_BUDGET
    if budgets.calls is not None and taken.calls >= budgets.calls:
        return TerminationReason.CALL_BUDGET
    if budgets.turns is not None and taken.calls and 1 + taken.turns >= budgets.turns:
        return TerminationReason.TURN_BUDGET
    return None
