"""What a cell checks would fail where it should."""

import pytest
from msgspec import structs
from proofs.conformance.cases import CASES, FILES, files_of
from proofs.conformance.facts import AS_IT_HAPPENS, BY_SIGNAL, Facts, Seen, tree_of
from proofs.conformance.setups import SETUPS
from proofs.conformance.traffic import NotCheckedError, wrong_with

from evener.client.session_views import CallView
from evener.proto.sessions import Fidelity, Placement, RootReason

RELAY = '101 connect(9, {sa_family=AF_INET, sin_port=htons(40001), sin_addr=inet_addr("127.0.0.1")}, 16) = 0\n'


def call(number: int, parent: int | None = None, root: RootReason | None = None, side_call: str | None = None) -> CallView:
    return CallView(
        number=number,
        call_id=f"c{number}",
        attempt=0,
        parent=parent,
        parent_choice=0,
        placement=Placement(rule=1, root=root),
        given_tokens=1,
        prompt_tokens=1,
        segments=(),
        policy="policy",
        model="policy",
        engine_id="e",
        fidelity=Fidelity.FED,
        side_call=side_call,
        retry_of=None,
        try_number=1,
        failure=None,
        detail="",
        received=True,
        opened_at=0.0,
        closed_at=1.0,
    )


def test_a_tree_tells_chains_branches_and_roots() -> None:
    """Whatever the numbers are; side calls apart."""
    first, compacted = call(1, root=RootReason.FIRST), call(6, root=RootReason.COMPACTION)
    calls = [first, call(2, 1), call(3, side_call="title"), call(5, 2), compacted, call(7, 2), call(9, 6), call(10, 7)]

    assert tree_of(calls) == "first 2(1 2), compaction 2"


def test_the_same_counts_in_another_tree_differ() -> None:
    """Rows and roots alone would not tell."""
    found = Seen(facts=Facts(tree="first 1(5 2)", rows=2), version=None, calls=8, sampled=1, detail="", unlike=(), seconds=0.0)

    assert found.differs(Facts(tree="first 1(4 3)", rows=2)) == ("tree first 1(5 2), not first 1(4 3)", "")


@pytest.mark.parametrize(("wanted", "differs"), [(0, True), (AS_IT_HAPPENS, False), (2, False)])
def test_only_what_is_left_open_is_not_compared(wanted: int, differs: bool) -> None:  # noqa: FBT001 - a column of the table
    """A number is compared, and so is None."""
    found = Seen(facts=Facts(tree="first 1", unanswered=2), version=None, calls=1, sampled=1, detail="", unlike=(), seconds=0.0)

    assert bool(found.differs(Facts(tree="first 1", unanswered=wanted))) is differs
    nobody = structs.replace(found, facts=structs.replace(found.facts, exit_code=None))
    assert "exit_code None, not 0" in nobody.differs(Facts(tree="first 1", unanswered=2))


@pytest.mark.parametrize(("exit_code", "fits"), [(-15, True), (-9, True), (143, True), (130, True), (0, False), (1, False), (None, False)])
def test_a_cancelled_cli_must_have_ended_by_a_signal(exit_code: int | None, fits: bool) -> None:  # noqa: FBT001 - a column of the table
    """Not as if it had finished, and not without anybody knowing."""
    facts = Facts(tree="first 1", exit_code=exit_code)
    found = Seen(facts=facts, version=None, calls=1, sampled=1, detail="", unlike=(), seconds=0.0)

    assert (found.differs(Facts(tree="first 1", exit_code=BY_SIGNAL)) == ()) is fits


@pytest.mark.parametrize(
    ("case", "written"), [("linear", 7), ("refused", 3), ("length", 2), ("bad_json", 2), ("sub_agent", 1), ("compaction", 4)]
)
def test_the_files_that_are_wanted_are_those_that_the_script_has_written(case: str, written: int) -> None:
    """A call with broken arguments writes none."""
    assert list(files_of(CASES[case], SETUPS["codex"])) == list(FILES)[:written]


def test_calls_to_loopback_alone_are_quiet() -> None:
    """By both families, and by mapped addresses."""
    mapped = '7 connect(3, {sa_family=AF_INET6, sin6_port=htons(80), inet_pton(AF_INET6, "::ffff:127.0.0.1", &sin6_addr)}, 28) = 0\n'
    unix = '7 connect(3, {sa_family=AF_UNIX, sun_path="/var/run/nscd/socket"}, 110) = -1 ENOENT\n'

    assert wrong_with(RELAY + mapped + unix) == []


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ('connect(5, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("192.0.2.7")}, 16)', "192.0.2.7 port 443"),
        ('sendto(5, ""..., 40, 0, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("10.0.0.53")}, 16)', "10.0.0.53 port 53"),
        ('connect(5, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.53")}, 16)', "127.0.0.53 port 53"),
        (
            'connect(5, {sa_family=AF_INET6, sin6_port=htons(443), inet_pton(AF_INET6, "2001:db8::1", &sin6_addr)}, 28)',
            "2001:db8::1 port 443",
        ),
        (
            'sendmmsg(5, [{msg_hdr={msg_name={sin_port=htons(53), sin_addr=inet_addr("10.0.0.53")}, msg_namelen=16}}], 2)',
            "10.0.0.53 port 53",
        ),
    ],
)
def test_traffic_beyond_loopback_and_look_ups_are_seen(asked: str, place: str) -> None:
    """A look-up also where its resolver is on loopback."""
    assert wrong_with(f"{RELAY}1 {asked} = 0\n") == [f"it talks to {place}"]


def test_a_look_up_by_systemd_is_seen() -> None:
    """It is no packet of the program's own."""
    line = '1 connect(5, {sa_family=AF_UNIX, sun_path="/run/systemd/resolve/io.systemd.Resolve"}, 42) = 0\n'

    assert wrong_with(RELAY + line) == ["it looks names up by a socket of systemd's"]


def test_a_trace_without_the_calls_to_the_relay_proves_nothing() -> None:
    """Then the cell says that it was not checked."""
    with pytest.raises(NotCheckedError, match="not checked"):
        wrong_with('1 connect(5, {sa_family=AF_UNIX, sun_path="/tmp/x"}, 42) = 0\n')
