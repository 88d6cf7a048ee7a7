"""Which versions of a policy may be published, by what its topic says."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.service_context import open_parts

from evener.bus.port import Fenced
from evener.proto.fleet import PolicyPublished, PolicyRetired, PolicyStaged
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.trainer_bridge.policies import Policies, VersionRefused


def staged(version: int, digest: str = "d") -> PolicyStaged:
    return PolicyStaged(policy="policy", version=version, location=f"/w/{version}", digest=digest, staged_at=1.0)


def published(version: int, digest: str = "d") -> PolicyPublished:
    return PolicyPublished(policy="policy", version=version, location=f"/w/{version}", digest=digest, published_at=1.0)


def retired(version: int) -> PolicyRetired:
    return PolicyRetired(policy="policy", version=version, reason="the canary failed", retired_at=1.0)


def policies_of(context: ServiceContext) -> Policies:
    return Policies(context.bus, EventLog(context.bus, context.blobs))


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with open_parts(tmp_path, partitions=1) as context:
        yield context


async def known(context: ServiceContext, *events: PolicyStaged | PolicyPublished | PolicyRetired) -> Policies:
    """Return what a bridge knows after these were written."""
    policies = policies_of(context)
    async with policies.writer("policy") as write:
        for event in events:
            await write(event)
    return policies


async def test_first_version_of_a_policy_is_new(context: ServiceContext) -> None:
    policies = await known(context)

    assert policies.known("policy", 7, "d") is None
    assert (policies.pending("policy"), policies.newest("policy"), policies.policies()) == (None, None, ())


async def test_equal_weights_under_their_number_are_the_same_version(context: ServiceContext) -> None:
    """A trainer that did not hear the answer publishes again, also where a later version followed."""
    policies = await known(context, staged(1), published(1), staged(2), published(2))

    assert policies.known("policy", 1, "d") == published(1)
    assert policies.known("policy", 2, "d") == published(2)
    assert policies.newest("policy") == 2


async def test_number_that_other_weights_have_is_refused(context: ServiceContext) -> None:
    """Each token names the weights that sampled it by this number."""
    policies = await known(context, published(1))

    with pytest.raises(VersionRefused, match="version 1 of policy is /w/1, with other weights"):
        policies.known("policy", 1, "other")


async def test_number_that_is_not_above_all_others_is_refused(context: ServiceContext) -> None:
    policies = await known(context, published(3))

    with pytest.raises(VersionRefused, match="version 2 of policy is not above 3"):
        policies.known("policy", 2, "d")


async def test_number_that_was_rolled_back_is_never_used_again(context: ServiceContext) -> None:
    """Not even for the weights that it named: an engine may have sampled with it. The version before is the current one again."""
    policies = await known(context, published(1), staged(2), retired(2))

    with pytest.raises(VersionRefused, match=r"version 2 of policy was rolled back \(the canary failed\)"):
        policies.known("policy", 2, "d")
    assert (policies.newest("policy"), policies.pending("policy")) == (1, None)
    assert policies.unproven_versions("policy") == {2}


async def test_version_that_is_staged_is_pending_until_its_end_is_written(context: ServiceContext) -> None:
    """Its bridge died: the next one goes on with it."""
    policies = await known(context, published(1), staged(2))

    assert policies.pending("policy") == staged(2)
    assert policies.known("policy", 2, "d") == staged(2)
    assert policies.unproven_versions("policy") == {2}


async def test_bridge_that_was_overtaken_writes_nothing_more_of_a_policy(context: ServiceContext) -> None:
    """The later writer has read what the earlier one wrote."""
    first, second = policies_of(context), policies_of(context)
    async with first.writer("policy") as write:
        await write(published(1))
        async with second.writer("policy") as overtaking:
            assert second.newest("policy") == 1
            with pytest.raises(Fenced):
                await write(published(2))
            await overtaking(published(2))

    await first.refresh()
    assert (first.newest("policy"), second.newest("policy")) == (2, 2)
