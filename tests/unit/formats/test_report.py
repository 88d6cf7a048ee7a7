"""The page that a person opens."""

import re
from html.parser import HTMLParser

import msgspec
from tests.support.builders import T0, built, ended, group, scored

from evener.formats.report.conversation import MAX_TOKENS, chosen, conversation
from evener.formats.report.render import render, wanted_ids
from evener.formats.report.sessions import MAX_SHOWN_TOKENS
from evener.formats.report.timelines import timelines
from evener.formats.report.view import group_card
from evener.proto.arrays import int32s, pack_int32
from evener.proto.reasons import TerminationReason
from evener.proto.trajectories import Accounting, GroupOutcome


def page(*outcomes: GroupOutcome, piece: bytes = b"word ", title: str = "Demo") -> str:
    pieces = dict.fromkeys(wanted_ids(outcomes), piece)
    return render(outcomes, pieces, title=title, facts={"policy": "tiny"}, now=T0)


class Checker(HTMLParser):
    """Keeps tags and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "input", "path"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


def test_page_is_well_formed_and_asks_nobody_for_anything() -> None:
    """One file: no address in any attribute, and a policy that forbids every request."""
    html = page(ended(group()), ended(group((None, None), name="lost")))
    tags = parsed(html).tags

    assert not [tag for tag, attributes in tags if {"src", "action", "data"} & attributes.keys()]
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in tags)
    assert "http://" not in html
    assert "https://" not in html
    assert "default-src 'none'" in html
    assert not re.search(r"@import|url\(", html)


def test_what_a_model_wrote_is_escaped() -> None:
    """In tokens, names, reasons and details."""
    evil = "<script>alert(1)</script>"
    lost = tuple(
        scored(built(evil, index, size=2, end=TerminationReason.NO_START, given={"detail": evil}), reward=None) for index in (0, 1)
    )
    html = page(ended(group()), ended(lost), piece=evil.encode() + b"\"'", title=evil)

    assert evil not in html
    assert html.count("<script>") == 1
    assert [tag for tag, _ in parsed(html).tags].count("script") == 1


def test_group_without_spread_is_marked() -> None:
    """Equal rewards teach nothing."""
    assert "no spread" in page(ended(group((1.0, 1.0))))
    assert "no spread" not in page(ended(group((1.0, 0.0))))


def test_group_with_nothing_to_train_is_marked() -> None:
    """It was merged, and trainers get nothing of it."""
    assert "nothing to train" in page(ended(group((1.0, 0.0), given={"rows": (), "accounting": Accounting()})))
    assert "nothing to train" not in page(ended(group((1.0, 0.0))))


def test_all_sessions_are_listed_with_links_to_their_tokens() -> None:
    """With end, reward and why nothing of one is trained; each link leads to something on the page."""
    nothing = {"detail": "13000 tokens do not fit 4096", "rows": (), "accounting": Accounting()}
    full = built(index=2, end=TerminationReason.CONTEXT_OVERFLOW, given=nothing)
    html = page(ended((scored(), scored(built(index=1), reward=None), scored(full), scored(built(index=3)))))
    tags = parsed(html).tags
    links = [str(attributes["href"])[1:] for tag, attributes in tags if tag == "a"]

    assert len(links) == 2
    assert {attributes.get("id") for tag, attributes in tags if tag == "details"} >= set(links)
    assert all(f"fix-the-bug.{index}" in html for index in range(4))
    assert "13000 tokens do not fit 4096" in html
    assert "no token was sampled" in html
    assert "ungraded: the grader gave no reward" in html


def test_page_of_many_sessions_stays_bounded_and_says_so() -> None:
    """Tokens of as many as fit; all are listed."""
    fit = MAX_SHOWN_TOKENS // MAX_TOKENS
    html = page(ended(group(tuple(range(fit + 1)), turns=((MAX_TOKENS, 4),))))

    assert f"{fit} of {fit + 1} sessions, each by its main branch" in html
    assert html.count('<details class="session"') == fit
    assert len(re.findall(r'<th scope="row">', html)) == fit + 1


def test_bars_stand_on_zero_also_below_it() -> None:
    bars = group_card(ended(group((1.0, -1.0, None)))).bars

    assert [(bar.bottom, bar.height, bar.negative) for bar in bars] == [(50.0, 50.0, False), (0.0, 50.0, True), (0.0, 0.0, False)]
    assert bars[2].excluded


def test_conversation_of_several_turns_from_the_widest_group_is_shown() -> None:
    flat = ended(group((1.0, 1.0), name="flat"))
    wide = ended(group((0.0, 1.0), name="wide"))
    single = ended(group((0.0, 1.0), name="single", turns=((4, 3),)))
    scored_one = chosen([flat, wide, single])

    assert scored_one is not None
    assert scored_one.trajectory.session_id == "wide.1"


def test_conversation_is_cut_where_sampling_begins_and_ends() -> None:
    talk = conversation(scored(), dict.fromkeys(range(49152), b"a"))

    assert [(run.call, len(run.tokens)) for run in talk.runs] == [(None, 12), (1, 6), (None, 5), (2, 4)]
    assert all(token.logprob is None for token in talk.runs[0].tokens)
    assert all(token.trained and token.version == 0 for token in talk.runs[1].tokens)
    assert (talk.sampled, talk.trained) == (10, 10)


def test_character_that_several_tokens_spell_is_shown_once() -> None:
    """Bytes of one letter stand together at its last token."""
    event = scored(built(turns=((1, 2),)))
    row = msgspec.structs.replace(event.trajectory.rows[0], ids=pack_int32([7, 8, 9]))
    event = msgspec.structs.replace(event, trajectory=msgspec.structs.replace(event.trajectory, rows=(row,)))
    talk = conversation(event, {7: b"f", 8: b"\xc3", 9: b"\xbcr"})

    assert [token.text for run in talk.runs for token in run.tokens] == ["f", "", "\u00fcr"]
    assert int32s(row.ids).tolist() == [token.id for run in talk.runs for token in run.tokens]


def test_time_lines_share_one_axis() -> None:
    lines = timelines([ended(group())])

    assert len(lines.lines) == 4
    assert [block.kind for block in lines.lines[0].blocks] == ["prepare", "agent", "call", "call", "grade"]
    assert all(block.left >= 0 and block.left + block.width <= 100.01 for line in lines.lines for block in line.blocks)
    assert lines.ticks[0].label == "0 s"


def test_page_without_a_single_session_still_tells() -> None:
    html = render([], {}, title="Nothing", facts={}, submitted=3, now=T0)

    parsed(html)
    assert "of 3 submitted" in html
