"""What harnesses share: options as data, an exit code that says how it ended, and a package that is installed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from evener.harnesses.port import ExitMeaning, HarnessError, Probe
from evener.harnesses.printed import last_line
from evener.proto.spec import Quirks
from evener.tasks.tables import Transport

Option = tuple[str, ...] | int | None
"""What an option takes: one of these values, the first of which is the default; a number of tokens, at least so many; None: any text."""


class PlainHarness:
    """The base of a harness. Unless it says otherwise, it comes with Evener, and it has tools, so that it needs the user's trust."""

    name: str
    package: str | None = None
    has_tools = True
    mcp_transports: tuple[Transport, ...] = ()
    probe: Probe | None = None
    quirks = Quirks()
    options: Mapping[str, Option] = {}

    def check(self, options: Mapping[str, str]) -> None:
        for name, value in options.items():
            if name not in self.options:
                msg = f"harness {self.name} has no option {name!r} (it has: {', '.join(self.options) or 'none'})"
                raise HarnessError(msg)
            if (wrong := _wrong(value, self.options[name])) is not None:
                msg = f"harness {self.name}: option {name} is {wrong}"
                raise HarnessError(msg)

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:  # noqa: ARG002 - the port's
        return 0

    def exit_meaning(self, exit_code: int, log: bytes) -> ExitMeaning:
        return ExitMeaning(exit_code=exit_code, detail="" if exit_code == 0 else last_line(log))


class Package(Protocol):
    """A pinned package of npm or PyPI."""

    @property
    def pinned(self) -> str: ...

    @property
    def locked(self) -> str: ...

    async def install(self, cache: Path, harness: str) -> Path: ...


class PackagedHarness(PlainHarness):
    """A harness whose program is a package."""

    def __init__(self, package: Package) -> None:
        self.version = package.locked
        self.package = package.pinned
        self._package = package

    async def install(self, cache: Path) -> Path:
        return await self._package.install(cache, self.name)


def _wrong(value: str, option: Option) -> str | None:
    """Return what is wrong with the value of an option. None: nothing."""
    match option:
        case tuple() if value not in option:
            return f"{value!r}, not one of {', '.join(option)}"
        case int() if not value.isdecimal():
            return f"{value!r}, not a number of tokens"
        case int() if int(value) < option:
            return f"less than {option}, the least that it takes"
        case _:
            return None
