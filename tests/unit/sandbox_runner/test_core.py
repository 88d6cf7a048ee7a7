"""Which dispatches a runner takes."""

import pytest
from tests.support import builders
from tests.support.builders import spec

from evener.proto.fleet import Running
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import HarnessSpec
from evener.sandbox_runner.core import HeldAttempts, NoStart, allow, one_line, told_excluded
from evener.sandboxes.port import Changes
from evener.scheduler.core import cut


def dispatched(session_id: str = "s", attempt: int = 1, runner_id: str = "r", boot_id: str | None = None) -> SessionDispatched:
    return builders.dispatched(session_id, spec(), attempt=attempt, runner_id=runner_id, boot_id=boot_id)


def test_an_attempt_is_taken_once_for_ever() -> None:
    """While it is held, and after it."""
    held = HeldAttempts("r", "b2")
    assert held.take(dispatched())
    assert not held.take(dispatched())
    assert held.running == (Running(session_id="s", attempt=1),)

    held.release(Running(session_id="s", attempt=1))

    assert not held.take(dispatched())
    assert held.take(dispatched(attempt=2))


def test_what_is_for_others_is_left_alone() -> None:
    """All runners read one topic."""
    assert not HeldAttempts("r", "b2").take(dispatched(runner_id="other"))


def test_of_two_runners_of_one_name_only_the_one_that_is_meant_takes_a_dispatch() -> None:
    """Two processes called `local` ran every session twice."""
    assert not HeldAttempts("r", "b2").take(dispatched(boot_id="b1"))
    assert HeldAttempts("r", "b2").take(dispatched(boot_id="b2"))


def test_a_further_attempt_names_those_that_it_ends() -> None:
    """Attempts of other sessions are not named."""
    held = HeldAttempts("r", "b2")
    held.take(dispatched())
    held.take(dispatched("other"))

    assert held.superseded(dispatched(attempt=2)) == (Running(session_id="s", attempt=1),)


def test_local_asks_for_trust_when_the_harness_has_tools() -> None:
    """What a model writes would run on the user's machine."""
    allow(HarnessSpec(name="script"), has_tools=False, trust_local=False)
    allow(HarnessSpec(name="pi"), has_tools=True, trust_local=True)
    with pytest.raises(NoStart, match=r"services were started without --trust-local.*; then `evener up --trust-local`") as refused:
        allow(HarnessSpec(name="openclaw"), has_tools=True, trust_local=False)
    assert cut(str(refused.value.args[0])) == str(refused.value.args[0])  # whoever gave the flag to `evener run` reads it to its end


def test_details_are_one_bounded_line() -> None:
    """They stand in events and on terminals."""
    assert one_line("a\n  b\t c") == "a b c"
    assert one_line("x" * 30, 10) == "xxxxxxxxxx..."


def test_details_of_any_bytes_can_be_written() -> None:
    """A file name on a disk need not be text."""
    assert one_line("no such file: \udcff") == "no such file: \\udcff"


def test_first_changes_that_were_not_kept_are_named_and_the_others_counted() -> None:
    """The artifact `excluded.json` has them all."""
    names = {f"{number}/socket": "a socket" for number in range(4)}
    few, many = Changes(archive=b"", excluded={"a": "a device"}, excluded_count=1), Changes(archive=b"", excluded=names, excluded_count=9)

    assert told_excluded(few) == "not kept of the changes: 'a': a device"
    assert told_excluded(many).startswith("not kept of the changes: '0/socket': a socket; '1/socket'")
    assert told_excluded(many).endswith("; 6 more, see excluded.json")
