"""What is refused at the door, by its field."""

import msgspec
import pytest
from tests.support.builders import heartbeat

from evener.client.views import Submission
from evener.proto.fleet import Heartbeat
from evener.proto.prepared import Converter
from evener.proto.sandbox import SandboxOffer
from evener.proto.spec import GraderSpec, HarnessSpec, Noise, Quirks, SideCall, Target
from evener.proto.tasks import TaskOptions
from evener.scheduler.submission import SubmissionRefused, check, check_policies, check_sandbox, parse


def options(policy: str, **models: Target) -> TaskOptions:
    return TaskOptions(harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"), policy=policy, models=models)


def gateway(*policies: str) -> Heartbeat:
    return heartbeat("provider_gateway", f"g-{policies}", policies=policies)


def test_policy_that_no_gateway_renders_is_refused() -> None:
    """Its sessions could not make one call, and their harnesses would look as if they had failed."""
    with pytest.raises(SubmissionRefused, match=r"no gateway knows the policy 'c' \(known: a, b\)") as refused:
        check_policies(options("c"), [gateway("a"), gateway("b")])
    with pytest.raises(SubmissionRefused) as mapped:
        check_policies(options("a", judge=Target(policy="c")), [gateway("a")])

    assert refused.value.field == "options.policy"
    assert mapped.value.field == "options.models.judge"


def test_policy_that_one_gateway_lacks_is_refused_with_its_name() -> None:
    """While a policy is added, gateway by gateway, its sessions could come to one that does not have it yet."""
    with pytest.raises(SubmissionRefused, match=r"the policy 'b' is not known to all gateways yet: g-\('a',\) lacks it"):
        check_policies(options("b"), [gateway("a"), gateway("a", "b")])
    check_policies(options("a"), [gateway("a"), gateway("a", "b")])


def test_policy_is_taken_on_trust_while_no_gateway_lives() -> None:
    """One may come that knows it."""
    check_policies(options("c"), [])
    check_policies(options("a", judge=Target(frozen="engine")), [gateway("a")])


def runner(*backends: str) -> Heartbeat:
    return heartbeat("sandbox_runner", f"r-{backends}", sandboxes=SandboxOffer(backends=backends))


def test_sandbox_that_no_runner_opens_is_refused_with_those_that_they_open() -> None:
    """Its sessions would wait for ever."""
    with pytest.raises(SubmissionRefused, match=r"no runner has sandboxes of `docker` \(they have bubblewrap, local\)") as refused:
        check_sandbox("docker", [runner("local"), runner("bubblewrap", "local")])

    assert refused.value.field == "options.harness.sandbox"


@pytest.mark.parametrize("runners", [[], [runner("local"), runner("docker")], [heartbeat("sandbox_runner", "older")]])
def test_sandbox_that_some_runner_opens_or_may_open_is_taken(runners: list[Heartbeat]) -> None:
    """Also while no runner lives; and nobody opens one for a recording."""
    check_sandbox("docker", runners)
    check_sandbox("none", [runner("local")])


SUBMISSIONS = Converter(Submission)


@pytest.mark.parametrize(
    ("field", "value"),
    [("group.max_staleness", 2**63), ("sampling.seed", 2**70), ("sampling.seed", -(2**63) - 1), ("budgets.tokens", 10**4000)],
)
def test_number_that_no_record_can_hold_is_refused_by_its_field(field: str, value: int) -> None:
    """Taken in, it would end the scheduler at the first event with it, and eight of them the process."""
    name, _, part = field.partition(".")
    given = {"harness": {"name": "script"}, "grader": {"name": "none"}, name: {part: 0} if part else 0}
    body = msgspec.json.encode({"options": given}).replace(f'"{part or name}":0'.encode(), f'"{part or name}":{value}'.encode())
    with pytest.raises(SubmissionRefused, match="64 bits") as refused:
        parse(body, SUBMISSIONS)

    assert refused.value.field == f"options.{field}"


@pytest.mark.parametrize("body", [b'{"options": "\xff"}', b"[" * 100_000, b'{"options":' * 100_000])
def test_body_that_no_parser_reads_is_refused(body: bytes) -> None:
    """Bytes that are no UTF-8, and levels without end."""
    with pytest.raises(SubmissionRefused, match="the body is not JSON"):
        parse(body, SUBMISSIONS)


ENDLESS = "(" * 22 + "a" + ")+" * 22
"""Would take minutes and all memory to compile."""


@pytest.mark.parametrize(
    ("field", "quirks", "grader"),
    [
        ("harness.quirks.noise[0].pattern", Quirks(noise=(Noise(where="user", pattern=ENDLESS),)), {}),
        ("harness.quirks.side_calls[0].last", Quirks(side_calls=(SideCall(name="x", last="("),)), {}),
        ("harness.quirks.compacted", Quirks(compacted=ENDLESS), {}),
        ("grader.options.expected", None, {"match": "regex", "expected": ENDLESS}),
    ],
)
def test_pattern_that_nothing_could_compile_is_refused_by_its_field(field: str, quirks: Quirks | None, grader: dict[str, str]) -> None:
    """It is decoded without being compiled, so that a record with it stops no reader."""
    spec = HarnessSpec(name="anything", sandbox="none", quirks=quirks)
    wanted = Submission(task=None, options=TaskOptions(harness=spec, grader=GraderSpec(name="answer", options=grader)))
    body = msgspec.json.encode(wanted)
    with pytest.raises(SubmissionRefused, match="not a regular expression") as refused:
        check(parse(body, SUBMISSIONS))

    assert refused.value.field == f"options.{field}"
