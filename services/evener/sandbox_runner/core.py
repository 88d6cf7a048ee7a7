"""What the runner decides: which dispatches it takes, what it may run, how a call's frames become an answer. Pure."""

from collections import OrderedDict
from enum import StrEnum
from typing import Final

from msgspec import Struct

from evener.proto.ends import ExitCause
from evener.proto.fleet import Running
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import HarnessSpec
from evener.sandboxes.port import Changes

REMEMBERED: Final = 10_000
"""Attempts that are remembered after their end."""
LOCAL: Final = "local"
NONE: Final = "none"
"""The sandbox of a session whose process is run by somebody else."""


class NoStart(Exception):
    """A session cannot start, for a reason that another attempt would meet again."""


class Ending(StrEnum):
    """What may end a harness before it ends itself."""

    AGENT_TIME = ExitCause.AGENT_TIME
    CANCELLED = ExitCause.CANCELLED
    STOPPED = ExitCause.STOPPED


class Me(Struct, frozen=True, kw_only=True):
    """Who takes dispatches."""

    runner_id: str
    boot_id: str

    def meant(self, event: SessionDispatched) -> bool:
        """Return whether a dispatch is for this very process, not for another of its name."""
        return event.runner_id == self.runner_id and event.boot_id in {None, self.boot_id}


class Held:
    """The attempts that this runner holds, and those that it held."""

    def __init__(self) -> None:
        self._held: dict[Running, None] = {}
        self._past: OrderedDict[Running, None] = OrderedDict()

    @property
    def running(self) -> tuple[Running, ...]:
        """Attempts that are held now, those that wait for a place included."""
        return tuple(self._held)

    def take(self, event: SessionDispatched, me: Me) -> bool:
        """Return whether to start what was dispatched; then it is held. A repeated dispatch starts nothing."""
        attempt = Running(session_id=event.session_id, attempt=event.attempt)
        known = attempt in self._held or attempt in self._past
        if not me.meant(event) or known:
            return False
        self._held[attempt] = None
        return True

    def superseded(self, event: SessionDispatched) -> tuple[Running, ...]:
        """Return lower attempts of the session that are still held here: the new one ends them."""
        return tuple(held for held in self._held if held.session_id == event.session_id and held.attempt < event.attempt)

    def release(self, attempt: Running) -> None:
        """The attempt is over."""
        self._held.pop(attempt, None)
        self._past[attempt] = None
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)


def allow(harness: HarnessSpec, *, has_tools: bool, trust_local: bool) -> None:
    """Raise NoStart for a harness that may not run in the sandbox that its run asks for."""
    if harness.sandbox != LOCAL:
        msg = f"sandbox {harness.sandbox!r} is not known to this runner (known: local, none)"
        raise NoStart(msg)
    if has_tools and not trust_local:
        msg = (
            f"harness {harness.name} has tools and would run what the model writes with your rights, and the running services were started "
            "without --trust-local. If you trust tasks and model, stop them; then `evener up --trust-local`, or let `evener run "
            "--trust-local` start its own"
        )
        raise NoStart(msg)


def told_left_out(changes: Changes, most: int = 3) -> str:
    """Return for people what of the changes was left out, and why: the first few by name."""
    first = "; ".join(f"{name[-200:]!r}: {reason}" for name, reason in list(changes.left_out.items())[:most])
    further = f"; {changes.left_out_count - most} more, see left_out.json" if changes.left_out_count > most else ""
    return f"left out of the changes: {first}{further}"


def one_line(text: str, most: int = 2000) -> str:
    """Return the text on one line, cut to `most` characters, and such as every reader decodes."""
    line = " ".join(text.encode(errors="backslashreplace").decode().split())
    return line if len(line) <= most else f"{line[:most]}..."
