"""TLS between all parts, over real sockets: clients to services, relays to gateways, services to engines."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs
from tests.support.certificates import Authority
from tests.support.commands import evener
from tests.support.engines import smollm
from tests.support.tls_front import tls_front
from tests.support.together import submit
from tests.support.up import LOG, Up, up
from tests.support.waiting import eventually, until

from evener.client.client import Client
from evener.client.errors import NotTrusted
from evener.engines.connection import EngineHttp, EngineLink, HttpRefusal
from evener.engines.port import EngineUnreachable
from evener.engines.scripted import Rule, Script, ScriptedServer, scripted_engine
from evener.proto.spec import GraderSpec, HarnessSpec, Sampling
from evener.proto.tasks import TaskOptions, TaskOutcome
from evener.runtime.tls import TlsFileUnusable, client_context
from evener.service.certificate import Certificate
from evener.service.config import ServiceConfig
from evener.service.listener import Mounts, bind, listen
from evener.service.state_folder import TOKEN_FILE

API_KEY = "engine-key"
SCRIPT = Script(default=Rule(say="one two three four five six seven eight nine ten"))
OPTIONS = TaskOptions(
    run_id="run", samples=1, harness=HarnessSpec(name="script"), grader=GraderSpec(name="harbor"), sampling=Sampling(max_tokens=64)
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedServer]:
    async with scripted_engine(SCRIPT, smollm()) as served:
        yield served


async def test_task_goes_its_way_where_everything_is_tls(
    tmp_path: Path, authority: Authority, engine: ScriptedServer, unused_tcp_port: int
) -> None:
    """The harness asks its relay, the relay the gateway, the gateway the engine with its key; client and probes trust the authority."""
    certificate, key = authority.sign()
    secret = tmp_path / "api-key"
    secret.write_text(API_KEY + "\n")
    state = tmp_path / "state"
    async with tls_front(engine.url, certificate, key, API_KEY) as front:
        options: dict[str, str | float] = {
            "engine": front,
            "engine-kind": "scripted",
            "engine-ca-file": authority.ca_file,
            "engine-api-keys": f'{{"*": "file:{secret}"}}',
            "tls-certificate-file": certificate,
            "tls-key-file": key,
            "tls-ca-file": authority.ca_file,
        }
        async with up(state, unused_tcp_port, options) as process:
            process.url = f"https://127.0.0.1:{unused_tcp_port}"
            await process.start()
            await ready(process, authority)
            async with Client(process.url, (state / TOKEN_FILE).read_text().strip(), ca_file=authority.ca_file) as client:
                await submit(client, "ten-words", OPTIONS)
                ended = await until(lambda: client.tasks("run"), lambda tasks: all(task.outcome is not None for task in tasks))
                assert [task.outcome for task in ended] == [TaskOutcome.MERGED]
            assert '"merged":1' in await command("runs", "--state", str(state), ca_file=authority.ca_file)
            assert API_KEY not in (state / LOG).read_text()

    assert len(engine.ledger) > 0


async def command(*words: str, ca_file: str) -> str:
    """Run a command as somebody does who trusts this authority; return what it says."""
    ended = await evener(*words, EVENER_TLS_CA_FILE=ca_file)
    assert ended.code == 0, ended.errors
    return ended.out


async def ready(process: Up, authority: Authority) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(authority.ca_file))) as http:

        async def answered() -> int:
            process.runs()
            try:
                async with http.get(f"{process.url}/readyz") as answer:
                    return answer.status
            except aiohttp.ClientError:
                return 0

        await until(answered, lambda status: status == 200)


async def test_client_that_does_not_know_the_authority_is_told_so(tmp_path: Path, authority: Authority) -> None:
    """Nothing is sent, least of all the token; and it is not said that nothing runs there."""
    served = Certificate(*authority.sign())
    listening = bind(ServiceConfig(state=str(tmp_path)))
    async with listen(Mounts(), listening, served.context), Client(f"https://127.0.0.1:{listening.getsockname()[1]}", "token") as client:
        with pytest.raises(NotTrusted, match=r"no TLS with https://127.0.0.1:\d+: .*certificate"):
            await client.fleet()


async def test_engine_is_asked_with_its_key_and_trusted_by_its_authority(
    tmp_path: Path, authority: Authority, engine: ScriptedServer
) -> None:
    """A wrong key is a refusal with the engine's own words; an unknown authority makes it unreachable."""
    (tmp_path / "foreign").mkdir()
    trusted, foreign = client_context(authority.ca_file), client_context(Authority(tmp_path / "foreign").ca_file)
    async with tls_front(engine.url, *authority.sign(), API_KEY) as url:
        assert (await asked(url, EngineLink(trusted, API_KEY)))["data"]
        with pytest.raises(HttpRefusal, match="this engine wants its key"):
            await asked(url, EngineLink(trusted))
        with pytest.raises(EngineUnreachable, match="certificate"):
            await asked(url, EngineLink(foreign, API_KEY))


async def asked(url: str, link: EngineLink) -> dict[str, object]:
    http = EngineHttp(url, link=link)
    try:
        found: dict[str, object] = await http.get("/v1/models")
    finally:
        await http.aclose()
    return found


async def test_renewed_certificate_is_served_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    """Platforms renew every few weeks; the process is to run for longer."""
    certificate, key = authority.sign()
    before = in_binary(certificate)
    served = Certificate(certificate, key)
    listening = bind(ServiceConfig(state=str(tmp_path)))
    port = listening.getsockname()[1]
    async with listen(Mounts(), listening, served.context):
        assert await shown(port, authority) == before
        watching = asyncio.create_task(served.watch(0.01))
        with capture_logs() as lines:
            authority.sign()  # under the same names
            await eventually(lambda: any(line["event"] == "certificate_renewed" for line in lines))
        assert await shown(port, authority) == in_binary(certificate) != before
        with capture_logs() as lines:
            damage(certificate)
            await eventually(lambda: any(line["event"] == "certificate_not_renewed" for line in lines))
        assert await shown(port, authority)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def in_binary(certificate: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(certificate).read_text())


def damage(file: str) -> None:
    Path(file).write_text("rubbish")


async def shown(port: int, authority: Authority) -> bytes:
    """Return the certificate that a server shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(authority.ca_file))
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return certificate


@pytest.mark.parametrize("wrong", ["missing", "rubbish", "key of another"])
def test_file_that_cannot_be_used_is_named(authority: Authority, wrong: str) -> None:
    """At start, and in one line."""
    certificate, key = authority.sign()
    if wrong == "missing":
        Path(key).unlink()
    elif wrong == "rubbish":
        damage(certificate)
    else:
        _, key = authority.sign("another")

    with pytest.raises(TlsFileUnusable, match=f"cannot use the certificate in {certificate} with the key in {key}: ."):
        Certificate(certificate, key)
    with pytest.raises(TlsFileUnusable, match=r"cannot use the authorities in nowhere\.pem: No such file"):
        client_context("nowhere.pem")
