"""What is spent of a session's budgets now: by closed calls, as the log says, and by open ones, which draw tokens as they sample. Pure."""

from typing import Final

from msgspec import Struct

from evener.proto.ends import End
from evener.proto.spec import Budgets
from evener.tokens.session import Session

FEWEST_TOKENS: Final = 1
"""Kept for each answer of an open call: none is empty."""


class Spent(Struct, frozen=True):
    """What calls of one attempt take of its budgets."""

    calls: int = 0
    turns: int = 0
    """Calls that extend their parent."""
    tokens: int = 0
    """Sampled."""


class Drawn(Struct):
    """What one open call takes."""

    extends: bool
    tokens: list[int]
    """Sampled so far, of each answer."""

    @property
    def held(self) -> int:
        """Tokens that nobody else can have."""
        return sum(max(FEWEST_TOKENS, drawn) for drawn in self.tokens)


class Spending:
    """Of one session: calls at once cannot overspend it together, and none waits for another.

    A call that samples alone may have all that is left. When several sample, each draws tokens as they come; the budget's last
    token ends all their answers.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[str, Drawn] = {}
        self._closed: tuple[int, Spent] | None = None
        """Attempt, and what its closed calls took. None: to be counted anew."""

    def admit(self, call_id: str, *, extends: bool, answers: int) -> End | None:
        """Count a call as open until it is freed, unless a budget has no room for it: then return which."""
        end = exhausted(self._taken(), self._budgets, answers=answers)
        if end is None:
            self._open[call_id] = Drawn(extends=extends, tokens=[0] * answers)
        return end

    def share(self, call_id: str) -> int | None:
        """Return how many tokens each answer of an open call can have, if no other call draws any. None: there is no limit."""
        if (budget := self._budgets.tokens) is None:
            return None
        mine = self._open[call_id]
        return (budget - self._taken().tokens + mine.held) // len(mine.tokens)

    def draw(self, call_id: str, answer: int, tokens: int) -> int:
        """Take sampled tokens of an answer out of the budget; return how many of them it still had."""
        if (budget := self._budgets.tokens) is None:
            return tokens
        mine = self._open[call_id]
        before, free = mine.held, budget - self._taken().tokens
        mine.tokens[answer] += tokens
        over = max(0, mine.held - before - free)
        mine.tokens[answer] -= over
        return tokens - over

    def free(self, call_id: str) -> None:
        """Note that a call has ended, or never opened: from now on the log alone says what it took."""
        self._open.pop(call_id, None)
        self._closed = None

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


def spent(session: Session) -> Spent:
    """Return what closed calls of the current attempt took."""
    closed = [call for call in session.forest.calls.values() if call.opened.attempt == session.attempt and call.closed is not None]
    return Spent(
        calls=len(closed),
        turns=sum(call.placement.parent is not None for call in closed),
        tokens=sum(call.answer_tokens for call in closed),
    )


def exhausted(taken: Spent, budgets: Budgets, *, answers: int = 1) -> End | None:
    """Return the budget that leaves no room for another call of so many answers, or None."""
    if budgets.tokens is not None and taken.tokens + answers * FEWEST_TOKENS > budgets.tokens:
        return End.TOKEN_BUDGET
    if budgets.calls is not None and taken.calls >= budgets.calls:
        return End.CALL_BUDGET
    if budgets.turns is not None and taken.calls and 1 + taken.turns >= budgets.turns:
        return End.TURN_BUDGET
    return None
