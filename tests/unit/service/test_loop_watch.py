"""How long a loop stops."""

import asyncio
import time

from prometheus_client import CollectorRegistry, generate_latest

from evener.service.loop_watch import watch_loop
from evener.service.telemetry import metrics

STOP_SECONDS = 0.2
TICK_SECONDS = 0.01
LONGEST, CPU = "evener_loop_longest_stop_seconds", "evener_loop_longest_stop_cpu_seconds"


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """Return every sample without labels, as one scrape reads them."""
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.split(" ") for line in lines if line[0] != "#" and "{" not in line)}


async def test_longest_stop_since_the_last_scrape_is_reported() -> None:
    """A scrape before an input and one after it give the stop that the input caused."""
    registry = CollectorRegistry()
    with watch_loop(metrics(registry), TICK_SECONDS):
        await asyncio.sleep(2 * TICK_SECONDS)
        scrape(registry)
        time.sleep(STOP_SECONDS)  # noqa: ASYNC251 (this is what is measured)
        await asyncio.sleep(2 * TICK_SECONDS)
        time.sleep(STOP_SECONDS / 2)  # noqa: ASYNC251
        await asyncio.sleep(2 * TICK_SECONDS)
        stopped, after = scrape(registry), scrape(registry)

    assert stopped[LONGEST] >= STOP_SECONDS - TICK_SECONDS
    assert stopped[CPU] < STOP_SECONDS  # it slept
    assert stopped["evener_loop_stop_seconds_count"] >= 2
    assert after[LONGEST] < stopped[LONGEST]


async def test_stop_that_the_scrape_itself_ends_is_seen() -> None:
    """The tick that is due comes after the scrape's answer."""
    registry = CollectorRegistry()
    with watch_loop(metrics(registry), TICK_SECONDS):
        scrape(registry)
        end = time.process_time() + STOP_SECONDS
        while time.process_time() < end:
            pass
        stopped = scrape(registry)

    assert stopped[LONGEST] >= STOP_SECONDS - TICK_SECONDS
    assert stopped[CPU] >= STOP_SECONDS
