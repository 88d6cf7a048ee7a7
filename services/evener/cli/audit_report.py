"""Shows the result of an audit."""

from collections import Counter
from typing import Final

from rich.text import Text

from evener.audit.findings import COUNTED, PROMISES, AuditReport, Breach
from evener.cli.output import console, table, tell

SHOWN_BREACHES: Final = 200
"""The largest number of breaches that are shown as text."""


def report(found: AuditReport, *, as_json: bool) -> None:
    """Write what was checked, then every breach."""
    if as_json:
        tell(found)
        return
    out = console()
    out.print(_extent(found), soft_wrap=True)
    broken = Counter(breach.invariant for breach in found.breaches)
    shown = table("", "checked", "breaches", "promise")
    for invariant, promise in PROMISES.items():
        checked = found.checked.get(invariant, 0)
        breaches = Text(str(broken[invariant]), "red") if broken[invariant] else Text("0" if checked else "")
        shown.add_row(invariant, f"{checked} {COUNTED[invariant]}" if checked else "nothing", breaches, promise)
    out.print(shown)
    for breach in found.breaches[:SHOWN_BREACHES]:
        out.print(_line(breach), soft_wrap=True)
    if len(found.breaches) > SHOWN_BREACHES:
        out.print(f"{len(found.breaches) - SHOWN_BREACHES} more breaches: --json shows them all", soft_wrap=True)


def _extent(found: AuditReport) -> str:
    told = f"{found.tasks} tasks, {found.sessions} sessions, {found.calls} calls, {found.groups} groups"
    if found.open_tasks or found.open_sessions:
        told += f"; open: {found.open_tasks} tasks, {found.open_sessions} sessions"
    if found.deleted_tasks:
        told += f"; deleted: {found.deleted_tasks} tasks"
    return told + (f"; trimmed from the log: {found.trimmed_sessions} sessions" if found.trimmed_sessions else "")


def _line(breach: Breach) -> Text:
    line = Text(f"{breach.invariant}  ", "red").append(f"{breach.about}: {breach.what}", "default")
    return line.append(f"  {', '.join(breach.records)}", "dim") if breach.records else line
