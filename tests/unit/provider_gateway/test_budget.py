"""Budgets of a session, spent by closed calls and by calls at once."""

from contextlib import ExitStack

import pytest
from tests.support.world import World, user

from evener.proto.reasons import CallFailure, TerminationReason
from evener.proto.spec import Budgets
from evener.provider_gateway.budget import BudgetSpent, SessionBudget, exhausted, spent


class Session(World):
    """A toy session with budgets."""

    def __init__(self, budgets: Budgets) -> None:
        super().__init__(budgets=budgets)
        self.budget = SessionBudget(self.session)
        self._reserved: dict[str, ExitStack] = {}

    def admit(self, call_id: str, *, extends: bool, answers: int) -> TerminationReason | None:
        """Let a call begin; return the budget that has no room for it."""
        try:
            reserved = self._reserved[call_id] = ExitStack()
            reserved.enter_context(self.budget.reserve(call_id, extends=extends, answers=answers))
        except BudgetSpent as spent:
            return spent.reason
        return None

    def free(self, call_id: str) -> None:
        """Let it end."""
        self._reserved.pop(call_id).close()


@pytest.mark.parametrize(
    ("budgets", "end"),
    [
        (Budgets(), None),
        (Budgets(calls=2), TerminationReason.CALL_BUDGET),
        (Budgets(calls=3), None),
        (Budgets(tokens=4), TerminationReason.TOKEN_BUDGET),
        (Budgets(tokens=5), None),
        (Budgets(turns=2), TerminationReason.TURN_BUDGET),
        (Budgets(turns=3), None),
    ],
)
def test_budget_is_spent_by_closed_calls_of_the_attempt(budgets: Budgets, end: TerminationReason | None) -> None:
    """Two calls of two tokens, the second extending the first."""
    session = Session(budgets)
    answer = session.ask([user("a")], "b")
    session.ask([user("a"), answer, user("c")], "d")
    assert exhausted(spent(session.session), budgets) is end
    assert session.admit("next", extends=True, answers=1) is end


@pytest.mark.parametrize(("budgets", "most"), [(Budgets(calls=2), 2), (Budgets(turns=3), 2), (Budgets(tokens=2), 2)])
def test_calls_at_once_take_no_more_than_there_is(budgets: Budgets, most: int) -> None:
    """Six calls extend one answer in the same moment: the first turn is taken by the call that gave it."""
    session = Session(budgets)
    if budgets.turns:
        session.ask([user("a")], "b")
    ends = [session.admit(f"x{number}", extends=True, answers=1) for number in range(6)]
    assert ends.count(None) == most


def test_call_that_ends_without_an_answer_gives_its_place_back() -> None:
    session = Session(Budgets(calls=1))
    placed, opened = session.open([user("a")])
    assert session.admit(opened.call_id, extends=False, answers=1) is None
    session.begin(placed, opened)
    session.fail(opened, CallFailure.ENGINE_UNREACHABLE)
    session.free(opened.call_id)
    assert session.admit("next", extends=False, answers=1) is None


def test_call_counts_once_from_its_beginning_to_long_after_its_end() -> None:
    """Also between its commit and the moment when it is freed, while others come and go."""
    session = Session(Budgets(calls=3, tokens=100))
    placed, opened = session.open([user("a")])

    def room() -> tuple[TerminationReason | None, int | None]:
        end = session.admit("probe", extends=False, answers=1)
        share = None if end else session.budget.share("probe")
        session.free("probe")
        return end, share

    assert session.admit(opened.call_id, extends=False, answers=1) is None
    assert session.budget.draw(opened.call_id, 0, 2) == 2
    assert session.admit("other", extends=False, answers=1) is None
    assert room() == (None, 97)
    session.close(placed, opened, ["b"])
    assert room() == (None, 97)
    session.free(opened.call_id)
    assert room() == (None, 97)
    session.free("other")
    assert room() == (None, 98)


def test_lone_call_may_have_everything_and_calls_at_once_draw_until_nothing_is_left() -> None:
    session = Session(Budgets(tokens=10))
    assert session.admit("a", extends=False, answers=1) is None
    assert session.budget.share("a") == 10
    assert session.budget.draw("a", 0, 4) == 4
    assert session.admit("b", extends=False, answers=1) is None
    assert session.budget.share("b") == 6
    assert [
        session.budget.draw("b", 0, 3),
        session.budget.draw("a", 0, 2),
        session.budget.draw("b", 0, 3),
        session.budget.draw("a", 0, 1),
    ] == [3, 2, 1, 0]
    assert session.admit("c", extends=False, answers=1) is TerminationReason.TOKEN_BUDGET
    session.free("b")
    assert session.budget.draw("a", 0, 9) == 4


def test_every_answer_has_a_token_of_its_own() -> None:
    """More answers than tokens are refused; the others cannot take the one that is kept for each."""
    session = Session(Budgets(tokens=5))
    assert session.admit("a", extends=False, answers=6) is TerminationReason.TOKEN_BUDGET
    assert session.admit("a", extends=False, answers=3) is None
    assert session.budget.share("a") == 1
    assert [session.budget.draw("a", answer, 4) for answer in (0, 1, 2)] == [3, 1, 1]


def test_session_without_a_token_budget_draws_freely() -> None:
    session = Session(Budgets())
    session.admit("a", extends=False, answers=1)
    assert session.budget.share("a") is None
    assert session.budget.draw("a", 0, 1_000_000) == 1_000_000


def test_another_attempt_begins_with_whole_budgets() -> None:
    session = Session(Budgets(calls=1))
    session.ask([user("a")], "b")
    assert session.admit("x", extends=False, answers=1) is TerminationReason.CALL_BUDGET
    session.start(2)
    assert session.admit("x", extends=False, answers=1) is None
