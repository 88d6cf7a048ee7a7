"""Two of every service on real Kafka, each a process: signals strike them and the broker, and the audit finds nothing."""

from pathlib import Path
from typing import Final

import pytest
from proofs.chaos.campaign import campaign
from proofs.chaos.strikes import AT_ALL, AT_MEMBERS, INSIDE

pytestmark = pytest.mark.kafka

QUICK: Final = (
    "SIGSTOP provider_gateway",
    "SIGKILL sandbox_runner",
    "SIGTERM scheduler",
    "SIGSTOP reconstructor",
    "SIGSTOP evaluator",
    "SIGSTOP at bridge.in_transaction",
    "SIGKILL broker",
)
"""Each service once, and each signal."""
NO_BROKER: Final = "no broker answers"
"""Why a member may end by itself: it was started while the broker was away."""
SLOW_TOKEN_MS: Final = 100.0
SESSIONS: Final = 12


async def test_nothing_is_lost_doubled_or_blamed_on_the_agent_when_members_and_the_broker_are_struck(tmp_path: Path) -> None:
    """Every strike meets an open call or grading of whom it strikes."""
    kinds = {kind: strike for kind, strike in {**AT_MEMBERS, **INSIDE, **AT_ALL}.items() if kind in QUICK}
    done = await campaign(tmp_path, kinds, wanted_hits=1, sessions=SESSIONS, at_once=3, open_tasks=4, slow_token_ms=SLOW_TOKEN_MS)
    assert done.breaches == ()
    assert set(done.faults) == set(QUICK)
    assert all(done.faults.values())
    assert done.sessions >= SESSIONS
    others = {name: [end for end in ends if NO_BROKER not in end] for name, ends in done.ends.items()}
    assert {name: ends for name, ends in others.items() if ends} == {}
    assert (done.lost, done.doubled, done.ours_graded, done.exit_codes) == (0, 0, 0, {})
