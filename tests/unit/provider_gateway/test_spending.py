"""Budgets of a session, spent by closed calls and by calls at once."""

import pytest
from tests.unit.tokens.toy import World, user

from evener.proto.ends import CallFailure, End
from evener.proto.spec import Budgets
from evener.provider_gateway.spending import Spending, exhausted, spent


class Session(World):
    """A toy session with budgets."""

    def __init__(self, budgets: Budgets) -> None:
        super().__init__(budgets=budgets)
        self.spending = Spending(self.session)


@pytest.mark.parametrize(
    ("budgets", "end"),
    [
        (Budgets(), None),
        (Budgets(calls=2), End.CALL_BUDGET),
        (Budgets(calls=3), None),
        (Budgets(tokens=4), End.TOKEN_BUDGET),
        (Budgets(tokens=5), None),
        (Budgets(turns=2), End.TURN_BUDGET),
        (Budgets(turns=3), None),
    ],
)
def test_budget_is_spent_by_closed_calls_of_the_attempt(budgets: Budgets, end: End | None) -> None:
    """Two calls of two tokens, the second extending the first."""
    session = Session(budgets)
    answer = session.ask([user("a")], "b")
    session.ask([user("a"), answer, user("c")], "d")
    assert exhausted(spent(session.session), budgets) is end
    assert session.spending.admit("next", extends=True, answers=1) is end


@pytest.mark.parametrize(("budgets", "most"), [(Budgets(calls=2), 2), (Budgets(turns=3), 2), (Budgets(tokens=2), 2)])
def test_calls_at_once_take_no_more_than_there_is(budgets: Budgets, most: int) -> None:
    """Six calls extend one answer in the same moment: the first turn is taken by the call that gave it."""
    session = Session(budgets)
    if budgets.turns:
        session.ask([user("a")], "b")
    ends = [session.spending.admit(f"x{number}", extends=True, answers=1) for number in range(6)]
    assert ends.count(None) == most


def test_call_that_ends_without_an_answer_gives_its_place_back() -> None:
    session = Session(Budgets(calls=1))
    placed, opened = session.open([user("a")])
    assert session.spending.admit(opened.call_id, extends=False, answers=1) is None
    session.begin(placed, opened)
    session.fail(opened, CallFailure.ENGINE_UNREACHABLE)
    session.spending.free(opened.call_id)
    assert session.spending.admit("next", extends=False, answers=1) is None


def test_call_counts_once_from_its_beginning_to_long_after_its_end() -> None:
    """Also between its commit and the moment when it is freed, while others come and go."""
    session = Session(Budgets(calls=3, tokens=100))
    placed, opened = session.open([user("a")])

    def room() -> tuple[End | None, int | None]:
        end = session.spending.admit("probe", extends=False, answers=1)
        share = None if end else session.spending.share("probe")
        session.spending.free("probe")
        return end, share

    assert session.spending.admit(opened.call_id, extends=False, answers=1) is None
    assert session.spending.draw(opened.call_id, 0, 2) == 2
    assert session.spending.admit("other", extends=False, answers=1) is None
    assert room() == (None, 97)
    session.close(placed, opened, ["b"])
    assert room() == (None, 97)
    session.spending.free(opened.call_id)
    assert room() == (None, 97)
    session.spending.free("other")
    assert room() == (None, 98)


def test_lone_call_may_have_everything_and_calls_at_once_draw_until_nothing_is_left() -> None:
    session = Session(Budgets(tokens=10))
    spending = session.spending
    assert spending.admit("a", extends=False, answers=1) is None
    assert spending.share("a") == 10
    assert spending.draw("a", 0, 4) == 4
    assert spending.admit("b", extends=False, answers=1) is None
    assert spending.share("b") == 6
    assert [spending.draw("b", 0, 3), spending.draw("a", 0, 2), spending.draw("b", 0, 3), spending.draw("a", 0, 1)] == [3, 2, 1, 0]
    assert spending.admit("c", extends=False, answers=1) is End.TOKEN_BUDGET
    spending.free("b")
    assert spending.draw("a", 0, 9) == 4


def test_every_answer_has_a_token_of_its_own() -> None:
    """More answers than tokens are refused; the others cannot take the one that is kept for each."""
    spending = Session(Budgets(tokens=5)).spending
    assert spending.admit("a", extends=False, answers=6) is End.TOKEN_BUDGET
    assert spending.admit("a", extends=False, answers=3) is None
    assert spending.share("a") == 1
    assert [spending.draw("a", answer, 4) for answer in (0, 1, 2)] == [3, 1, 1]


def test_session_without_a_token_budget_draws_freely() -> None:
    spending = Session(Budgets()).spending
    spending.admit("a", extends=False, answers=1)
    assert spending.share("a") is None
    assert spending.draw("a", 0, 1_000_000) == 1_000_000


def test_another_attempt_begins_with_whole_budgets() -> None:
    session = Session(Budgets(calls=1))
    session.ask([user("a")], "b")
    assert session.spending.admit("x", extends=False, answers=1) is End.CALL_BUDGET
    session.start(2)
    assert session.spending.admit("x", extends=False, answers=1) is None
