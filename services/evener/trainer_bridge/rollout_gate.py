"""Which rollouts are under way: a policy has one at a time, and its groups are delivered when the rollout has ended."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from evener.proto.fleet import PolicyStaged
from evener.trainer_bridge.policies import Policies

STAGED_POLL_SECONDS: Final = 0.2
"""The interval of checks whether a staged version was published or rolled back."""


class RolloutGate:
    """Knows which rollouts are under way. Each policy has one at a time, and no group of the policy is delivered meanwhile."""

    def __init__(self, policies: Policies, owns: Callable[[str], bool], load_seconds: float) -> None:
        """`owns`: whether this bridge owns a policy now. `load_seconds`: how long an engine may take for an update."""
        self.owns: Final = owns
        self.locks: Final[defaultdict[str, asyncio.Lock]] = defaultdict(asyncio.Lock)
        """Policy to the lock that is held while its engines are updated."""
        self._policies = policies
        self._load_seconds = load_seconds
        self._ends: dict[str, asyncio.Event] = {}
        """Policy with a rollout to the event that is set when the rollout has ended."""
        self._staged: dict[str, tuple[PolicyStaged, float]] = {}
        """Policy to the version that was last waited for, and until when (monotonic seconds)."""

    @contextmanager
    def closed(self, policy: str) -> Iterator[None]:
        """Keep `settled` waiting until this block ends."""
        ended = self._ends[policy] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[policy]
            ended.set()

    async def settled(self, policy: str) -> None:
        """Wait until no rollout of a policy is under way. Before its end nobody knows whether the version's tokens may be trained.

        A rollout by another bridge, or one still to be taken up after a crash, is waited for as long as an engine may take.
        """
        while True:
            if (ended := self._ends.get(policy)) is not None:
                await ended.wait()
            elif (staged := self._policies.pending(policy)) is not None and time.monotonic() < self._until(staged):
                await asyncio.sleep(STAGED_POLL_SECONDS)
            else:
                return

    async def all_settled(self) -> None:
        """Wait until this bridge has no rollout under way."""
        while self._ends:
            await next(iter(self._ends.values())).wait()

    def _until(self, staged: PolicyStaged) -> float:
        """Return until when a staged version is waited for. The time counts from when this process first saw the version."""
        version, until = self._staged.get(staged.policy, (None, 0.0))
        if version != staged:
            until = time.monotonic() + self._load_seconds
            self._staged[staged.policy] = (staged, until)
        return until
