"""Planted faults strike where and when they were told, and otherwise not at all."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.support.loop import forever

from evener.proto.errors import ConfigError
from evener.runtime import faults

PASSES_THRICE = """
import asyncio
from evener.runtime import faults
faults.arm("kill@a.b#2")
for _ in range(3):
    asyncio.run(faults.point("a.b"))
    print("passed", flush=True)
"""


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.arm("")


async def test_points_do_nothing_without_faults() -> None:
    """They stand in the hot path."""
    faults.arm("")
    await faults.point("gateway.committed")


async def test_pause_strikes_once_at_its_turn() -> None:
    """The second pass sleeps; the first and the third do not."""
    faults.arm("pause@bridge.merging#2=600")
    paused = []
    for _ in range(3):
        passing = asyncio.create_task(faults.point("bridge.merging"))
        await asyncio.sleep(0)
        paused.append(not passing.done())
        passing.cancel()

    assert paused == [False, True, False]


async def test_pause_ends_after_its_seconds() -> None:
    """And not before."""
    faults.arm("pause@bridge.merging=0.05")
    began = time.monotonic()
    await faults.point("bridge.merging")

    assert time.monotonic() - began >= 0.05


async def test_cancel_strikes_the_service_and_who_passes() -> None:
    """A handler of the service would otherwise answer after its service is gone."""
    faults.arm("cancel@gateway.committed")
    service = asyncio.create_task(forever())
    other = asyncio.create_task(forever())
    faults.running("provider_gateway", service)
    faults.running("scheduler", other)
    passing = asyncio.create_task(faults.point("gateway.committed"))
    await asyncio.wait({service, passing}, timeout=60)

    assert service.cancelled()
    assert passing.cancelled()
    assert not other.done()
    other.cancel()


async def test_action_of_a_test_happens_at_every_pass_while_its_block_runs() -> None:
    passes = list[str]()

    async def note() -> None:
        passes.append("loop")

    with faults.at_point("gateway.committed", note), faults.at_point_in_thread("gateway.committed", lambda: passes.append("thread")):
        await faults.point("gateway.committed")
        await faults.point("bridge.merged")
        faults.point_in_thread("gateway.committed")
        await faults.point("gateway.committed")
    await faults.point("gateway.committed")
    faults.point_in_thread("gateway.committed")

    assert passes == ["loop", "thread", "loop"]


def test_kill_is_sigkill() -> None:
    """Nothing is cleaned up, as in a power cut of the process."""
    ended = subprocess.run([sys.executable, "-c", PASSES_THRICE], stdout=subprocess.PIPE, check=False, env=dict(os.environ))

    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b"passed\n"


def test_freeze_stops_the_process_until_sigcont() -> None:
    """A zombie in the making: others take over what it holds, and then it goes on."""
    passes = PASSES_THRICE.replace("kill@a.b#2", "freeze@a.b#2")
    with subprocess.Popen([sys.executable, "-c", passes], stdout=subprocess.PIPE, env=dict(os.environ)) as frozen:
        _, status = os.waitpid(frozen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        frozen.send_signal(signal.SIGCONT)
        told, _ = frozen.communicate(timeout=60)
    assert told == b"passed\n" * 3
    assert frozen.returncode == 0


@pytest.mark.parametrize("text", ["kill", "kill@", "explode@a.b", "kill@a.b#x", "kill@a.b,nonsense"])
def test_misspelt_fault_is_refused(text: str) -> None:
    """A test with a fault that never strikes would prove nothing."""
    with pytest.raises(ConfigError, match="EVENER_FAULTS"):
        faults.arm(text)


def test_kill_strikes_in_a_thread_too_and_what_needs_the_loop_does_not() -> None:
    """The embedded bus writes in a thread: that is where its transactions are."""
    passes = PASSES_THRICE.replace("kill@a.b#2", "pause@a.b,kill@a.b#2").replace("asyncio.run(faults.point", "(faults.point_in_thread")
    ended = subprocess.run([sys.executable, "-c", passes], stdout=subprocess.PIPE, check=False, env=dict(os.environ))

    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b"passed\n"
