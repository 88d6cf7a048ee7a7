"""What is refused at the door, by its field."""

import pytest

from evener.proto.fleet import Heartbeat
from evener.proto.spec import GraderSpec, HarnessSpec, Target
from evener.proto.tasks import TaskOptions
from evener.scheduler.submission import Refused, check_policies


def options(policy: str, **models: Target) -> TaskOptions:
    return TaskOptions(harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"), policy=policy, models=models)


def gateway(*policies: str) -> Heartbeat:
    return Heartbeat(instance_id=f"g-{policies}", service="provider_gateway", boot_id="b", policies=policies, at=0)


def test_policy_that_no_gateway_renders_is_refused() -> None:
    """Its sessions could not make one call, and their harnesses would look as if they had failed."""
    with pytest.raises(Refused, match=r"no gateway knows the policy 'c' \(known: a, b\)") as refused:
        check_policies(options("c"), [gateway("a"), gateway("b")])
    with pytest.raises(Refused) as mapped:
        check_policies(options("a", judge=Target(policy="c")), [gateway("a")])

    assert refused.value.field == "options.policy"
    assert mapped.value.field == "options.models.judge"


def test_policy_is_taken_on_trust_while_no_gateway_lives() -> None:
    """One may come that knows it."""
    check_policies(options("c"), [])
    check_policies(options("a", judge=Target(frozen="engine")), [gateway("a")])
