"""Dead letters on both buses: their list, and that each record is replayed once, whoever asks."""

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support import commands
from tests.support.principals import principals_file
from tests.support.service_context import MISSING, OPERATOR, RUBBISH, context_on, serving
from tests.support.waiting import until

from evener.bus.embedded import open_embedded
from evener.bus.kafka import open_kafka
from evener.bus.port import Bus, Header, Outgoing, Record
from evener.client.client import Client
from evener.client.errors import NotAllowed, RequestRefused, Unavailable
from evener.proto.letters import LetterQuery, ReplayResult, Replays, position_text
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.state import TaskState
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.proto.topics import HEADER_GROUP, HEADER_SESSION, TOPICS, Topic
from evener.service.auth import load_secrets
from evener.service.context import ServiceContext
from evener.service.dead_letters import DeadLetters
from evener.service.dead_letters_http import dead_letter_routes
from evener.service.events import EventLog

EVERYTHING = LetterQuery(replayed=True)


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
async def context(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with AsyncExitStack() as stack:
        bus: Bus
        if request.param == "embedded":
            bus = await stack.enter_async_context(open_embedded(tmp_path / "bus", TOPICS, 2))
        else:
            servers, prefix = request.getfixturevalue("kafka_servers"), f"t{secrets.token_hex(4)}."
            bus = await stack.enter_async_context(open_kafka(servers, TOPICS, 2, prefix))
        yield context_on(bus, tmp_path, operator_token=OPERATOR, registry=CollectorRegistry())


@pytest.fixture
async def client(context: ServiceContext) -> AsyncIterator[Client]:
    letters = DeadLetters(context.bus, context.answering_blobs())
    async with serving(dead_letter_routes(letters, context.secrets)) as url, Client(url, OPERATOR) as client:
        yield client


async def bad_record(context: ServiceContext, session: str, *, missing: bool = False) -> Record:
    """Append a record of a session that nobody can read."""
    value, headers = MISSING if missing else RUBBISH
    about = (Header(HEADER_SESSION, session.encode()), Header(HEADER_GROUP, session.rpartition(".")[0].encode()))
    (at,) = await context.bus.send([Outgoing(topic=Topic.SESSIONS, key=session, value=value, headers=headers + about)])
    (record,) = [found async for found in context.bus.read(at.topic, at.partition, at.offset) if found.offset == at.offset]
    return record


async def given_up(context: ServiceContext, session: str, *services: str, missing: bool = False) -> str:
    """Let services give such a record up; return its position."""
    record = await bad_record(context, session, missing=missing)
    for service in services:
        await EventLog(context.bus, context.waiting_blobs()).dead_letter(service, record, f"{session} is damaged")
    return position_text(record.topic, record.partition, record.offset)


async def found(client: Client, query: LetterQuery) -> list[tuple[str, str]]:
    """Return session and service of each letter."""
    return [(letter.session, letter.service) for letter in (await client.dead_letters(query)).letters]


async def records(context: ServiceContext) -> Counter[str]:
    """Return how many records of each session there are."""
    bus = context.bus
    return Counter([record.key for partition in (0, 1) async for record in bus.read(Topic.SESSIONS, partition)])


async def test_open_letters_are_listed_by_every_filter(context: ServiceContext, client: Client) -> None:
    """By service, topic, session, run and time; the oldest first."""
    before = time.time()
    await given_up(context, "a.0", "reconstructor", "scheduler")
    await given_up(context, "b.1", "reconstructor")
    options = TaskOptions(run_id="mine", harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"))
    submitted = TaskSubmitted(task_id="b", task=None, options=options, submitted_at=1)
    await EventLog(context.bus, context.blobs).send(Topic.SCHEDULER_STATE, "b", TaskState(submitted=submitted, sessions=()))
    everything = [("a.0", "reconstructor"), ("a.0", "scheduler"), ("b.1", "reconstructor")]

    assert await found(client, LetterQuery()) == everything
    assert await found(client, LetterQuery(service="reconstructor")) == [everything[0], everything[2]]
    assert await found(client, LetterQuery(topic="sessions")) == everything
    assert await found(client, LetterQuery(topic="tasks")) == []
    assert await found(client, LetterQuery(session="b.1")) == everything[2:]
    assert await found(client, LetterQuery(run="mine")) == everything[2:]
    assert await found(client, LetterQuery(run="other")) == []
    assert await found(client, LetterQuery(since=before)) == everything
    assert await found(client, LetterQuery(since=time.time() + 60)) == []
    assert await found(client, LetterQuery(until=before)) == []


async def test_replayed_record_is_there_again_and_its_letters_are_closed(context: ServiceContext, client: Client) -> None:
    """One record, also if two services gave it up, with its bytes and headers; a second replay does nothing."""
    position = await given_up(context, "a.0", "reconstructor", "scheduler")
    (done,) = (await client.replay([position])).replays

    assert (done.position, done.result) == (position, ReplayResult.REPLAYED)
    assert done.to is not None
    partition, offset = map(int, done.to.removeprefix("sessions/").split("@"))
    (again,) = await until(lambda: read(context, partition, offset))
    assert (again.key, again.value) == ("a.0", RUBBISH[0])
    assert Header(HEADER_SESSION, b"a.0") in again.headers
    assert await found(client, LetterQuery()) == []
    assert await found(client, EVERYTHING) == [("a.0", "reconstructor"), ("a.0", "scheduler")]
    assert all(letter.replayed_at is not None for letter in (await client.dead_letters(EVERYTHING)).letters)

    (second,) = (await client.replay([position])).replays
    assert (second.result, second.to) == (ReplayResult.ALREADY, None)
    assert await records(context) == {"a.0": 2}


async def read(context: ServiceContext, partition: int, offset: int) -> list[Record]:
    return [record async for record in context.bus.read(Topic.SESSIONS, partition, offset)]


async def test_all_letters_of_a_query_are_replayed(context: ServiceContext, client: Client) -> None:
    """Others stay open."""
    for session, service in (("a.0", "reconstructor"), ("a.1", "reconstructor"), ("b.0", "scheduler")):
        await given_up(context, session, service)
    done = (await client.replay(query=LetterQuery(service="reconstructor"))).replays

    assert [one.result for one in done] == [ReplayResult.REPLAYED] * 2
    assert await found(client, LetterQuery()) == [("b.0", "scheduler")]
    assert await records(context) == {"a.0": 2, "a.1": 2, "b.0": 1}


async def test_two_that_replay_at_the_same_time_append_each_record_once(context: ServiceContext, client: Client) -> None:
    """From two processes: one fences the other, which gets an error that says to ask again."""
    positions = [await given_up(context, f"a.{number}", "reconstructor") for number in range(8)]
    other = DeadLetters(context.bus, context.answering_blobs())
    async with serving(dead_letter_routes(other, context.secrets)) as url, Client(url, OPERATOR) as second:
        outcomes = await asyncio.gather(client.replay(positions), second.replay(positions), return_exceptions=True)
        assert all(isinstance(outcome, Replays | Unavailable) for outcome in outcomes)
        left = (await second.replay(positions)).replays

    assert {one.result for one in left} <= {ReplayResult.REPLAYED, ReplayResult.ALREADY}
    assert await records(context) == {f"a.{number}": 2 for number in range(8)}


async def test_record_that_is_no_longer_in_the_log_is_reported_as_such(context: ServiceContext, client: Client) -> None:
    """A position where nothing stands, a partition that is not there, and a letter whose bytes are lost with the blob store."""
    position = await given_up(context, "a.0", "reconstructor")
    done = (await client.replay(["sessions/0@4711", "sessions/7@0", "nothing/0@0", position])).replays

    gone, done_now = ReplayResult.GONE, ReplayResult.REPLAYED
    assert [one.result for one in done] == [gone, gone, gone, done_now]


async def test_record_that_nobody_wrote_a_letter_about_can_be_replayed_too(context: ServiceContext, client: Client) -> None:
    """Trainers skip groups that they cannot read, and write nothing."""
    record = await bad_record(context, "a.0", missing=True)
    position = position_text(record.topic, record.partition, record.offset)
    first, second = [(await client.replay([position])).replays[0].result for _ in range(2)]

    assert (first, second) == (ReplayResult.REPLAYED, ReplayResult.ALREADY)
    assert await records(context) == {"a.0": 2}


async def test_commands_list_and_replay(context: ServiceContext, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of JSON; the exit code is 1 if a record is no longer in the log."""
    monkeypatch.setenv("EVENER_URL", client.url)
    monkeypatch.setenv("EVENER_OPERATOR_TOKEN", OPERATOR)
    position = await given_up(context, "a.0", "reconstructor")

    code, (line,) = await evener("dead-letters", "list", "--since", "1h", "--service", "reconstructor")
    assert (code, line["position"], line["session"], line["reason"]) == (0, position, "a.0", "a.0 is damaged")
    code, (line,) = await evener("dead-letters", "replay", "--all")
    assert (code, line["position"], line["result"]) == (0, position, "replayed")
    code, lines = await evener("dead-letters", "replay", position, "sessions/0@4711")
    assert (code, [line["result"] for line in lines]) == (1, ["already replayed", "no longer in the log"])
    assert await evener("dead-letters", "list") == (0, [])


async def evener(*words: str) -> tuple[int | None, list[dict[str, Any]]]:
    """Run a command; return its exit code and its lines."""
    ended = await commands.evener(*words)
    return ended.code, [json.loads(line) for line in ended.out.splitlines()]


async def test_wrong_requests_are_refused_in_one_line(client: Client) -> None:
    """The refusal names the fault."""
    with pytest.raises(RequestRefused, match="name positions, or give a query"):
        await client.replay()
    with pytest.raises(RequestRefused, match=r"matching regex.*positions"):
        await client.replay(["sessions"])


async def test_only_admins_see_and_replay_dead_letters(context: ServiceContext, tmp_path: Path) -> None:
    """A letter may hold what another team's model wrote."""
    file = principals_file(tmp_path / "principals.toml", "ann search trainer", "root ops admin")
    letters = DeadLetters(context.bus, context.answering_blobs())
    async with serving(dead_letter_routes(letters, load_secrets(tmp_path, principals_file=file))) as url:
        async with Client(url, "ann") as ann:
            with pytest.raises(NotAllowed, match="this needs the role admin"):
                await ann.dead_letters(LetterQuery())
            with pytest.raises(NotAllowed, match="this needs the role admin"):
                await ann.replay(["sessions/0@0"])
        async with Client(url, "root") as root:
            assert (await root.dead_letters(LetterQuery())).letters == ()
