"""Renders the page: fills the template with values, and inlines style and script."""

import time
from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from evener.formats.report.conversation import HEATS, conversation, ids_of
from evener.formats.report.sessions import anchor_of, listing, shown
from evener.formats.report.timelines import timelines
from evener.formats.report.view import group_card, result_counts, shares
from evener.formats.summary import seen, summarize
from evener.proto.trajectories import GroupOutcome


def wanted_ids(outcomes: Sequence[GroupOutcome]) -> list[int]:
    """Return the ids whose bytes the page needs, sorted."""
    return ids_of(shown(sorted(outcomes, key=_began)))


def render(
    outcomes: Sequence[GroupOutcome],
    pieces: Mapping[int, bytes],
    *,
    title: str,
    facts: Mapping[str, str],
    submitted: int | None = None,
    now: float | None = None,
) -> str:
    """Return the page as HTML.

    `pieces` are the bytes of `wanted_ids(outcomes)`; `facts` stand under the title (policy, harness, engine, ...). Raises TypeError if the
    groups' blobs were not fetched.
    """
    folder = files(__package__)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    ordered = sorted(outcomes, key=_began)
    summary = summarize(ordered, submitted)
    on_page = shown(ordered)
    return environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8")).render(
        title=title,
        facts=dict(facts),
        figures=result_counts(summary),
        groups=[group_card(event) for event in ordered],
        timelines=timelines(ordered),
        shares=shares(summary),
        seconds=summary.seconds,
        sessions=listing(ordered, on_page),
        conversations=[(anchor_of(number), conversation(scored, pieces)) for number, scored in enumerate(on_page)],
        heats=HEATS,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
        # Our own files, not text of a model: the only unescaped parts of the page.
        style=Markup(folder.joinpath("style.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(folder.joinpath("script.js").read_text(encoding="utf-8")),  # noqa: S704
    )


def _began(event: GroupOutcome) -> tuple[float, str]:
    """Return the sort key of a group: its first dispatch."""
    begins = [scored.trajectory.dispatched_at for _, scored in seen(event.members) if scored.trajectory.dispatched_at is not None]
    return min(begins, default=0.0), event.group_id
