"""Named points at which tests inject faults. Without EVENER_FAULTS they do nothing.

`EVENER_FAULTS=kill@gateway.committed#2,pause@bridge.committing=3,cancel@gateway.committed` kills the process (SIGKILL) when it passes
`gateway.committed` for the second time, sleeps 3 s at the first pass of `bridge.committing`, and cancels the task of the service whose
folder name ends in `gateway`, together with the task that passes. `freeze@POINT` stops the process (SIGSTOP) until somebody sends SIGCONT.
Each fault happens once.

A test in the same process gives a point an action instead: `with at_point("gateway.commit", held):`.
"""

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from evener.proto.errors import ConfigError

FORM: Final = re.compile(r"^(?P<kind>kill|freeze|cancel|pause)@(?P<point>[a-z_.]+)(#(?P<nth>\d+))?(=(?P<seconds>[\d.]+))?$")


class PlannedFault(Struct, kw_only=True):
    """A fault at a point."""

    kind: str
    left: int
    """The number of passes until it happens. Below 1: it has happened."""
    seconds: float


def read(text: str) -> dict[str, list[PlannedFault]]:
    """Return the faults in `text` by point. Raises ConfigError for an invalid fault."""
    faults: dict[str, list[PlannedFault]] = {}
    for part in filter(None, text.split(",")):
        form = FORM.match(part)
        if form is None:
            msg = f"EVENER_FAULTS: {part!r} is not KIND@POINT[#N][=SECONDS] with kind kill, freeze, cancel or pause"
            raise ConfigError(msg)
        fault = PlannedFault(kind=form["kind"], left=int(form["nth"] or 1), seconds=float(form["seconds"] or 1))
        faults.setdefault(form["point"], []).append(fault)
    return faults


_faults: dict[str, list[PlannedFault]] = {}
_services: dict[str, asyncio.Future[None]] = {}
_actions: dict[str, Callable[[], Awaitable[None]]] = {}
_thread_actions: dict[str, Callable[[], None]] = {}


def arm(text: str) -> None:
    """Plan faults for this process. The host calls this at its start."""
    _faults.clear()
    _faults.update(read(text))


def running(service: str, task: asyncio.Future[None]) -> None:
    """Register the task that runs a service, which a fault `cancel` cancels."""
    _services[service] = task


async def point(name: str) -> None:
    """Pass the point `service.step`, where planned faults happen."""
    for fault in _due(name):
        await _strike(fault, name)
    if (action := _actions.get(name)) is not None:
        await action()


def point_in_thread(name: str) -> None:
    """Pass a point outside the event loop, where of the planned faults only `kill` happens."""
    if any(fault.kind == "kill" for fault in _due(name)):
        os.kill(os.getpid(), signal.SIGKILL)
    if (action := _thread_actions.get(name)) is not None:
        action()


@contextmanager
def at_point(name: str, action: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Await an action at each pass of a point of the event loop, as long as the block runs."""
    _actions[name] = action
    try:
        yield
    finally:
        del _actions[name]


@contextmanager
def at_point_in_thread(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Call an action at each pass of a point outside the event loop, as long as the block runs."""
    _thread_actions[name] = action
    try:
        yield
    finally:
        del _thread_actions[name]


def _due(name: str) -> list[PlannedFault]:
    """Count a pass; return the faults that are due."""
    faults = _faults.get(name, [])
    for fault in faults:
        fault.left -= 1
    return [fault for fault in faults if fault.left == 0]


async def _strike(fault: PlannedFault, name: str) -> None:
    match fault.kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "pause":
            await asyncio.sleep(fault.seconds)
        case _:
            service = name.partition(".")[0]
            passing = asyncio.current_task()
            for task in {task for owner, task in _services.items() if owner.endswith(service)} | {passing}:
                if task is not None:
                    task.cancel()
            await asyncio.sleep(0)
