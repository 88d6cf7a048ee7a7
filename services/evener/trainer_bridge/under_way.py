"""Which updates are under way: of one policy one at a time, and no group of it is delivered meanwhile."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from evener.proto.fleet import PolicyStaged
from evener.trainer_bridge.policies import Policies

LOOK_SECONDS: Final = 0.2
"""Between two looks what has become of a version that is staged."""


class UnderWay:
    """Updates here, and, as far as the log tells, at other bridges."""

    def __init__(self, policies: Policies, drives: Callable[[str], bool], load_seconds: float) -> None:
        """`drives`: whether a policy is this bridge's now. `load_seconds`: what an engine may take for an update."""
        self.drives: Final = drives
        self.load_seconds: Final = load_seconds
        self.locks: Final[defaultdict[str, asyncio.Lock]] = defaultdict(asyncio.Lock)
        """By policy: held by whoever drives its engines."""
        self._policies = policies
        self._ends: dict[str, asyncio.Event] = {}
        """By policy whose engines are being given a version: set when that has ended."""
        self._staged: dict[str, tuple[PolicyStaged, float]] = {}
        """By policy: the version that was waited for last, and until when (monotonic seconds)."""

    @contextmanager
    def update(self, policy: str) -> Iterator[None]:
        """Let `settled` wait until this block ends."""
        ended = self._ends[policy] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[policy]
            ended.set()

    async def settled(self, policy: str) -> None:
        """Wait until no update of a policy is under way: before its end nobody knows whether its tokens may be trained.

        One that goes on elsewhere, or is still to be taken up after a crash, is waited for as long as an engine may take.
        """
        while True:
            if (ended := self._ends.get(policy)) is not None:
                await ended.wait()
            elif (staged := self._policies.pending(policy)) is not None and time.monotonic() < self._until(staged):
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return

    async def all_settled(self) -> None:
        """Wait until no update is under way here."""
        while self._ends:
            await next(iter(self._ends.values())).wait()

    def _until(self, staged: PolicyStaged) -> float:
        """Return until when a staged version is waited for: since it was first met here, as it may be older than this process."""
        version, until = self._staged.get(staged.policy, (None, 0.0))
        if version != staged:
            until = time.monotonic() + self.load_seconds
            self._staged[staged.policy] = (staged, until)
        return until
