"""Which harness runs a session, and with which quirks."""

from pathlib import Path

import pytest
from tests.support.builders import alone

from evener.harnesses.base import PlainHarness
from evener.harnesses.port import HarnessMissing, Launch, LaunchContext
from evener.harnesses.registry import harness
from evener.proto.spec import HarnessSpec, Quirks, SideCall
from evener.sandbox_runner.bundles import Bundles
from evener.sandbox_runner.core import NoStart
from evener.sandbox_runner.preparation import chosen, declared

OWN = Quirks(side_calls=(SideCall(name="title", last="^Title"),))


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (HarnessSpec(name="nosuch"), "nosuch"),
        (HarnessSpec(name="script", options={"tunrs": "x"}), "tunrs"),
        (HarnessSpec(name="script", sandbox="nosuch"), "sandbox 'nosuch' is not known to this runner"),
        (HarnessSpec(name="pi"), "--trust-local"),
    ],
    ids=["unknown harness", "unknown option", "unknown sandbox", "no trust"],
)
def test_session_that_no_attempt_could_start_does_not_start(wanted: HarnessSpec, why: str) -> None:
    """The reason names what to mend."""
    with pytest.raises(NoStart, match=why):
        chosen(alone(harness=wanted), trust_local=False)


def test_harness_that_may_run_is_the_one_that_the_run_names() -> None:
    assert chosen(alone(harness=HarnessSpec(name="pi")), trust_local=True).name == "pi"


def test_quirks_of_a_run_go_before_those_of_its_harness() -> None:
    """Also of a harness that somebody else runs, of which Evener may know nothing."""
    pi = harness("pi")

    assert declared(HarnessSpec(name="pi", quirks=OWN), pi) == OWN
    assert declared(HarnessSpec(name="pi"), pi) == pi.quirks
    assert declared(HarnessSpec(name="pi"), None) == pi.quirks
    assert declared(HarnessSpec(name="my-agent"), None) == Quirks()


class Installed(PlainHarness):
    """A harness whose installation fails at first, and is counted."""

    name = "mine"
    summary = "a harness of the tests"
    version = "1"
    dialects: tuple[str, ...] = ("openai_chat",)
    has_tools = False

    def __init__(self, fails: int = 0) -> None:
        self.installations = 0
        self._fails = fails

    async def install(self, cache: Path) -> Path:
        self.installations += 1
        if self.installations <= self._fails:
            msg = "the registry does not answer"
            raise HarnessMissing(msg)
        return cache / "bundle"

    def launch(self, context: LaunchContext, bundle: Path) -> Launch:
        raise NotImplementedError


async def test_bundle_is_installed_once(tmp_path: Path) -> None:
    """Whoever needs it later has it from before."""
    bundles, needed = Bundles(tmp_path), Installed()

    assert {await bundles.bundle(needed) for _ in range(3)} == {tmp_path / "bundle"}
    assert needed.installations == 1


async def test_bundle_that_could_not_be_installed_is_tried_again_for_the_next_session(tmp_path: Path) -> None:
    """The session that needed it first says why."""
    bundles, needed = Bundles(tmp_path), Installed(fails=1)
    with pytest.raises(HarnessMissing, match="harness mine cannot be installed: the registry does not answer"):
        await bundles.bundle(needed)

    assert await bundles.bundle(needed) == tmp_path / "bundle"
