"""Which files of the gateway an ordinary call enters: those that its page tells of, and no more than a reader can keep in mind."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.gateway import gateway

import evener.provider_gateway.service
from evener.engines.scripted import Rule, Script

FOLDER = Path(evener.provider_gateway.service.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "services" / "provider-gateway.md"
MOST = 13
CALLS = 3
"""What happens beside a call by chance, such as a probe of the engine, does not happen beside each of so many."""


@contextmanager
def entered() -> Iterator[set[str]]:
    """Collect the files of the gateway in which a function is called."""
    files = set[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent == FOLDER:
            files.add(path.name)

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def test_an_ordinary_call_enters_the_files_that_its_page_names(tmp_path: Path) -> None:
    """Not streamed, answered at its first try, in a session that has had calls."""
    async with gateway(tmp_path, Script(default=Rule(say="Hello."))) as hand:
        capability = await hand.start("s1")
        talk = [{"role": "user", "content": "hi"}]
        seen: list[set[str]] = []
        for _ in range(CALLS):
            with entered() as files:
                said = await hand.say(capability, talk)
            seen.append(files)
            talk += [said, {"role": "user", "content": "go on"}]
    part = PAGE.read_text().partition("### One call, file by file")[2].partition("Other calls enter")[0]
    called = seen[0].intersection(*seen[1:])
    assert {file.name for file in FOLDER.glob("*.py") if f"`provider_gateway/{file.name}`" in part} == called
    assert len(called) <= MOST
