"""What the runner decides: which dispatches it takes, and what it may run. Pure."""

from collections import OrderedDict
from typing import Final

from evener.proto.fleet import Running
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import HarnessSpec
from evener.sandboxes.port import Changes
from evener.sandboxes.registry import BACKENDS
from evener.tokens.session import NO_SANDBOX

REMEMBERED: Final = 10_000
"""The number of attempts that are remembered after their end."""


class NoStart(Exception):
    """The session cannot start, for a reason that another attempt would meet again."""


class HeldAttempts:
    """The attempts that this runner holds, and those that it held."""

    def __init__(self, runner_id: str, boot_id: str) -> None:
        """`boot_id`: of this very process, and not another of its name."""
        self._runner_id = runner_id
        self._boot_id = boot_id
        self._held: dict[Running, None] = {}
        self._past: OrderedDict[Running, None] = OrderedDict()

    @property
    def running(self) -> tuple[Running, ...]:
        """The attempts that are held now, including those that wait for a slot."""
        return tuple(self._held)

    def take(self, event: SessionDispatched) -> bool:
        """Return whether to start the dispatched attempt, which is then held. Repeated dispatches, and those of others, start nothing."""
        attempt = Running(session_id=event.session_id, attempt=event.attempt)
        is_meant = event.runner_id == self._runner_id and event.boot_id in {None, self._boot_id}
        if not is_meant or attempt in self._held or attempt in self._past:
            return False
        self._held[attempt] = None
        return True

    def superseded(self, event: SessionDispatched) -> tuple[Running, ...]:
        """Return the earlier attempts of the session that are still held here, which the new one ends."""
        return tuple(held for held in self._held if held.session_id == event.session_id and held.attempt < event.attempt)

    def release(self, attempt: Running) -> None:
        """Release an attempt that has ended."""
        self._held.pop(attempt, None)
        self._past[attempt] = None
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)


def allow(harness: HarnessSpec, *, has_tools: bool, trust_local: bool) -> None:
    """Raise NoStart for a harness that may not run in the sandbox that its run requests."""
    backend = BACKENDS.get(harness.sandbox)
    if backend is None:
        msg = f"sandbox {harness.sandbox!r} is not known to this runner (known: {', '.join([*BACKENDS, NO_SANDBOX])})"
        raise NoStart(msg)
    if has_tools and not backend.isolates and not trust_local:
        msg = (
            f"harness {harness.name} has tools and would run what the model writes with your rights, and the running services were started "
            "without --trust-local. If you trust tasks and model, stop them; then `evener up --trust-local`, or let `evener run "
            "--trust-local` start its own"
        )
        raise NoStart(msg)


def told_excluded(changes: Changes, most: int = 3) -> str:
    """Return which changes were not kept and why, in words: the first few by name."""
    first = "; ".join(f"{name[-200:]!r}: {reason}" for name, reason in list(changes.excluded.items())[:most])
    further = f"; {changes.excluded_count - most} more, see excluded.json" if changes.excluded_count > most else ""
    return f"not kept of the changes: {first}{further}"


def one_line(text: str, most: int = 2000) -> str:
    """Return the text on one line of valid UTF-8, cut to `most` characters."""
    line = " ".join(text.encode(errors="backslashreplace").decode().split())
    return line if len(line) <= most else f"{line[:most]}..."
