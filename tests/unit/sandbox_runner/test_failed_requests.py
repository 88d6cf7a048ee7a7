"""Which failed request a marked one repeats."""

import pytest

from evener.sandbox_runner.failed_requests import KEPT_REQUESTS, FailedRequests
from evener.sandbox_runner.gateway_client import RelayedCall

PATH = "/v1/chat/completions"
MARKED = {"retry": "1"}


def call(request_id: str = "r1", body: bytes = b"{}", *, path: str = PATH, headers: dict[str, str] | None = None) -> RelayedCall:
    return RelayedCall(path=path, body=body, headers=headers or {}, request_id=request_id, capability="", partition=0)


async def original(failed: FailedRequests, asked: RelayedCall) -> str | None:
    return failed.original(asked, await failed.digest(asked))


async def failed_with(*calls: RelayedCall, retry_header: str | None = "retry") -> FailedRequests:
    failed = FailedRequests(retry_header)
    for one in calls:
        failed.note(one, await failed.digest(one))
    return failed


async def test_marked_request_repeats_the_failed_one_of_its_bytes_once() -> None:
    """The next marked one repeats something else: the log says what became of the first."""
    failed = await failed_with(call("r1"))

    assert await original(failed, call("r2", headers=MARKED)) == "r1"
    assert await original(failed, call("r3", headers=MARKED)) is None


async def test_equal_requests_that_failed_are_repeated_in_their_order() -> None:
    failed = await failed_with(call("r1"), call("r2"))

    assert [await original(failed, call(headers=MARKED)) for _ in range(3)] == ["r1", "r2", None]


@pytest.mark.parametrize(
    "asked",
    [call(), call(headers={"retry": "0"}), call(headers=MARKED, body=b"{ }"), call(headers=MARKED, path=PATH + "?beta")],
    ids=["not marked", "marked as the first try", "other bytes", "another path"],
)
async def test_other_request_repeats_none(asked: RelayedCall) -> None:
    """An agent that asks the same again, because it wants another answer, gets another answer."""
    assert await original(await failed_with(call()), asked) is None


async def test_client_that_marks_no_retries_repeats_none() -> None:
    """Nothing is kept of its requests."""
    failed = await failed_with(call(), retry_header=None)

    assert await failed.digest(call(headers=MARKED)) is None
    assert await original(failed, call(headers=MARKED)) is None


async def test_what_is_kept_of_failed_requests_is_bounded() -> None:
    """The oldest is forgotten first."""
    failed = await failed_with(*(call(f"r{number}", b"%d" % number) for number in range(KEPT_REQUESTS + 1)))

    assert await original(failed, call(body=b"0", headers=MARKED)) is None
    assert await original(failed, call(body=b"1", headers=MARKED)) == "r1"
