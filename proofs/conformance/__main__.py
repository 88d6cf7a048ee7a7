"""`python -m proofs.conformance [--only A,B] [--cases X,Y] [--slow]`: real CLIs through whole Eveners; figures to outputs/conformance.json.

A part of the cells replaces those in the figures that are there; of the others those stay that were made with the same code and CLI.
"""

import argparse
import asyncio
from collections.abc import Mapping
from typing import TypeVar

from proofs.conformance.cases import CASES
from proofs.conformance.page import publish
from proofs.conformance.setups import SETUPS
from proofs.conformance.suite import run_all

T = TypeVar("T")


def named(known: Mapping[str, T], wanted: str, what: str) -> list[T]:
    """Return those that a list names, by their name or its first word; all for an empty list. Ends the program for an unknown name."""
    names = {name.strip() for name in wanted.split(",") if name.strip()}
    if unknown := names - {*known, *(key.split()[0] for key in known)}:
        message = f"there is no {what} {min(unknown)!r}; there are: {', '.join(known)}"
        raise SystemExit(message)
    return [each for key, each in known.items() if not names or names & {key, key.split()[0]}]


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m proofs.conformance")
    parser.add_argument("--only", default="", help="set-ups or harnesses, with commas between")
    parser.add_argument("--cases", default="", help="cases, with commas between")
    parser.add_argument("--slow", action="store_true", help="six minutes of silence, too")
    options = parser.parse_args()
    setups, cases = named(SETUPS, options.only, "set-up"), named(CASES, options.cases, "case")
    if not options.cases:
        cases = [case for case in cases if options.slow or not case.only_when_asked]
    asked = {(setup.name, case.name) for setup in setups for case in cases if setup.has(case.name)}
    return publish(asyncio.run(run_all(setups, cases)), asked)


if __name__ == "__main__":
    raise SystemExit(main())
