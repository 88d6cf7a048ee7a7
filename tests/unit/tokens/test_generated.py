"""Properties 1 to 5 on generated sessions, with the independent checker as the oracle."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.generated import Harness, Step, steps
from tests.support.world import plain, replay

from evener.audit.engine_ledger import check
from evener.proto.codec import encode
from evener.proto.sessions import RootReason
from evener.proto.spec import Strategy
from evener.proto.trajectories import RowKind
from evener.tokens.trajectory import build

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "500"))
"""Sessions in `make test`; `make fuzz` generates more."""


@settings(max_examples=EXAMPLES)
@given(steps)
def test_whatever_a_harness_does_rows_hold_what_the_engine_sampled(plan: list[Step]) -> None:
    """Each row stands in the ledger, each sampled token is trained once or counted, and a replay gives the same bytes."""
    harness = Harness()
    trajectory = harness.play(plan)

    assert check([plain(trajectory)], harness.world.ledger_lines()) == []
    assert harness.misjudged(trajectory) == set()
    assert trajectory.accounting.excluded == harness.excluded(trajectory)
    assert trajectory.inconsistencies == ()
    assert [row.kind for row in trajectory.rows].count(RowKind.MAIN) <= 1
    assert encode(replay(harness.world.log)) == encode(trajectory)
    twice = [record for record in harness.world.log for _ in range(2)]
    assert replay(twice).rows == trajectory.rows
    per_call = build(harness.world.session, strategy=Strategy.PER_CALL)
    assert check([plain(per_call)], harness.world.ledger_lines()) == []
    assert per_call.accounting == trajectory.accounting


@given(st.lists(st.tuples(st.sampled_from(("ask", "tool", "user", "length")), st.just(0), st.integers(0, 8)), min_size=1, max_size=30))
def test_history_that_only_grows_is_one_row(plan: list[Step]) -> None:
    """However its answers are spelled: nothing but the first call is a root."""
    linear = [(name, which, number) for name, which, number in plan]
    trajectory = Harness().play([*linear, ("user", 0, 0), ("ask", 0, 0)])

    assert [row.root for row in trajectory.rows] == [RootReason.FIRST]
    assert trajectory.accounting.excluded == {}
