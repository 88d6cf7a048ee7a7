"""Configuration: three layers, and an unknown key is an error that names where it stands."""

import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from evener.proto.errors import ConfigError
from evener.service.config import ServiceConfig
from evener.service.config_app import load, load_all


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the file."""

    name: str
    most: int = 3


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheduler's."""

    lease_seconds: Annotated[float, Meta(ge=1)] = 10.0
    """A lease."""
    eager: bool = False
    names: tuple[str, ...] = ()
    limits: tuple[Limits, ...] = ()
    by_name: dict[str, Limits] = {}


class Other(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An evaluator's."""

    concurrency: int = 4
    """Gradings at a time."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "evener.toml"
    path.write_text('port = 1\nlog_level = "debug"\n[scheduler]\nport = 2\nlease_seconds = 20\n[evaluator]\nconcurrency = 9\n')
    return path


def scheduler(*argv: str, **environ: str) -> Config:
    return load(Config, argv, environ, "scheduler")


def test_each_layer_lies_over_the_one_before(file: Path) -> None:
    """Default < file < table of the file < environment < flags."""
    config = ["--config", str(file)]

    assert scheduler().port == 0
    assert scheduler(*config).port == 2
    assert scheduler(*config).log_level == "debug"
    assert scheduler(*config, EVENER_PORT="3").port == 3
    assert scheduler(*config, EVENER_PORT="3", EVENER_SCHEDULER_PORT="4").port == 4
    assert scheduler(*config, "--port", "5", EVENER_SCHEDULER_PORT="4").port == 5


def test_one_file_serves_all_services(file: Path) -> None:
    """A service leaves the tables of the others alone."""
    assert load(Other, ["--config", str(file)], {}, "evaluator").concurrency == 9
    assert load(Other, [], {"EVENER_CONFIG": str(file), "EVENER_SCHEDULER_EAGER": "true"}, "evaluator").concurrency == 9


def test_text_becomes_the_type_of_its_field() -> None:
    """Variables and flags are text; a list is separated by commas, a table is JSON."""
    config = scheduler("--lease-seconds=2.5", "--eager", "--names", "a, b", '--by-name={"x": {"name": "n", "most": 1}}')

    assert (config.lease_seconds, config.eager, config.names) == (2.5, True, ("a", "b"))
    assert config.by_name == {"x": Limits(name="n", most=1)}
    assert scheduler("--no-eager", EVENER_SCHEDULER_EAGER="true").eager is False
    assert scheduler("--instance", "7").instance == "7"


def test_tables_of_a_file_become_structs(tmp_path: Path) -> None:
    """Lists of tables are how a service is told of several things of one kind."""
    file = tmp_path / "evener.toml"
    file.write_text('[[scheduler.limits]]\nname = "a"\n[[scheduler.limits]]\nname = "b"\nmost = 5\n')

    assert scheduler("--config", str(file)).limits == (Limits(name="a"), Limits(name="b", most=5))


def test_flags_of_one_process_with_several_services() -> None:
    """What all share goes to all; a dotted flag is for one."""
    configs = load_all({"scheduler": Config, "evaluator": Other}, ["--port=7", "--evaluator.concurrency", "2"], {})

    assert [config.port for config in configs.values()] == [7, 7]
    assert isinstance(configs["evaluator"], Other)
    assert configs["evaluator"].concurrency == 2


@pytest.mark.parametrize(
    ("argv", "environ", "told"),
    [
        (["--lease-second", "3"], {}, "Unknown option: --lease-second. Did you mean --lease-seconds?"),
        (["--evaluater.concurrency", "3"], {}, "Unknown option: --evaluater.concurrency. Did you mean --evaluator.concurrency?"),
        (["--nothing"], {}, "Unknown option: --nothing."),
        (["--port"], {}, "Parameter --port requires an argument."),
        (["serve"], {}, "Unused Tokens: ['serve']."),
        (["--lease-seconds", "0.5"], {}, "--lease-seconds: Expected `float` >= 1.0"),
        (["--port", "many"], {}, "--port: Expected `int`, got `str`"),
        (["--by-name", "{"], {}, "--by-name: Input data was truncated"),
        ([], {"EVENER_PROT": "1"}, "unknown key 'prot' in the environment; did you mean 'port'?"),
        ([], {"EVENER_SCHEDULER_CONCURRENCY": "1"}, "unknown key 'concurrency' in [scheduler] of the environment"),
        ([], {"EVENER_PORT": "x"}, "[port]: Expected `int`, got `str`, in the environment"),
        (["--config", "/nowhere/evener.toml"], {}, "cannot read /nowhere/evener.toml: "),
    ],
)
def test_wrong_configuration_is_reported_with_its_place(argv: list[str], environ: dict[str, str], told: str) -> None:
    """The key, where it stands, and what was probably meant."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_all({"scheduler": Config, "evaluator": Other}, argv, environ)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1", r"unknown key 'prot' in .*evener\.toml; did you mean 'port'\?"),
        ("lease_seconds = 1", "unknown key 'lease_seconds' in "),
        ("[schedular]\nport = 1", r"unknown key 'schedular' in .*; did you mean 'scheduler'\?"),
        ("[scheduler]\nleases = 1", r"unknown key 'leases' in \[scheduler\] of"),
        ('[scheduler]\nport = "x"', r"\[port\]: Expected `int`, got `str`, in \[scheduler\] of .*evener.toml"),
        ("scheduler = 1", "scheduler"),
        ("port = ", r"cannot read .*evener\.toml: "),
    ],
)
def test_wrong_file_is_reported_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """A misspelt key never means a silent default."""
    file = tmp_path / "evener.toml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=told):
        scheduler("--config", str(file))


def test_help_tells_each_key_with_meaning_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands in the code beside a field is what the user reads."""
    with pytest.raises(SystemExit) as ended:
        load_all({"scheduler": Config, "evaluator": Other}, ["--help"], {})

    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert re.search(r"--lease-seconds FLOAT +A lease\. \[default: 10\.0\]", shown)
    assert re.search(r"--evaluator.concurrency INT +Gradings at a time\. \[default: 4\]", shown)


def test_printed_configuration_is_read_back_and_hides_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--print-config` is a file to start from; what is secret stays so."""
    argv = ["--names=a,b", "--eager", "--state", str(tmp_path), '--by-name={"x y": {"name": "ü\\n"}}']
    with pytest.raises(SystemExit) as ended:
        scheduler(*argv, "--operator-token", "hush", "--print-config")
    shown = capsys.readouterr().out
    file = tmp_path / "evener.toml"
    file.write_text(shown)

    assert ended.value.code == 0
    assert "hush" not in shown
    assert "# operator_token is set, and hidden" in shown
    assert scheduler("--config", str(file)) == scheduler(*argv)


def test_bus_and_blobs_stand_in_the_state_folder(tmp_path: Path) -> None:
    """Unless they are told to stand elsewhere."""
    config = scheduler("--state", str(tmp_path), "--blobs", "memory://")

    assert config.bus == f"embedded:{tmp_path}/bus"
    assert config.blobs == "memory://"


def test_state_folder_follows_the_desktop_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME, else ~/.local/state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    assert scheduler().state == str(tmp_path / "evener")


def test_variables_of_kubernetes_services_are_no_keys() -> None:
    """A Service named `evener`, or `evener-scheduler`, sets variables in every pod that look like ours, some with a key's very name."""
    links = {
        "EVENER_SERVICE_HOST": "10.0.0.11",
        "EVENER_SERVICE_PORT": "80",
        "EVENER_SERVICE_PORT_HTTP": "80",
        "EVENER_PORT": "tcp://10.0.0.11:80",
        "EVENER_PORT_80_TCP": "tcp://10.0.0.11:80",
        "EVENER_PORT_80_TCP_PROTO": "tcp",
        "EVENER_PORT_80_TCP_PORT": "80",
        "EVENER_PORT_80_TCP_ADDR": "10.0.0.11",
        "EVENER_SCHEDULER_SERVICE_HOST": "10.0.0.12",
        "EVENER_SCHEDULER_PORT": "tcp://10.0.0.12:80",
        "EVENER_PROVIDER_GATEWAY_HEADLESS_PORT_80_TCP_ADDR": "10.0.0.13",
    }

    assert scheduler(**links) == scheduler()
    assert scheduler(**links | {"EVENER_PORT": "80"}).port == 80
    with pytest.raises(ConfigError, match="unknown key 'prot' in the environment"):
        scheduler(**links, EVENER_PROT="80")
    with pytest.raises(ConfigError, match="port"):
        scheduler(EVENER_PORT="tcp:/10.0.0.11:80")


def test_secret_is_read_from_the_file_that_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As platforms mount secrets. What is printed of the configuration shows neither."""
    file = tmp_path / "key"
    file.write_text("hush\nand more\n")

    assert scheduler("--capability-key", f"file:{file}").capability_key == "hush"
    with pytest.raises(SystemExit):
        scheduler("--capability-key", f"file:{file}", "--print-config")
    assert "hush" not in capsys.readouterr().out


@pytest.mark.parametrize(("content", "told"), [(None, "cannot read the secret in .*: No such file"), ("\n", "is empty")])
def test_secret_that_cannot_be_read_is_reported_with_its_file(tmp_path: Path, content: str | None, told: str) -> None:
    """An empty or missing secret must not become a key that anybody could guess."""
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)

    with pytest.raises(ConfigError, match=told):
        scheduler("--capability-key", f"file:{file}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kafka_ca_file": "ca.pem"}, "kafka_tls"),
        ({"kafka_tls": "true", "kafka_key_file": "key.pem"}, "kafka_certificate_file"),
        ({"kafka_username": "ann", "kafka_password": "p"}, "no kafka_sasl_mechanism"),
        ({"kafka_sasl_mechanism": "SCRAM-SHA-512", "kafka_username": "ann"}, "kafka_password"),
        ({"kafka_sasl_mechanism": "OAUTHBEARER"}, "kafka_token_file"),
    ],
)
def test_half_of_a_login_to_kafka_is_refused(given: dict[str, str], told: str) -> None:
    """It names the key that is missing, instead of connecting without the protection that somebody meant."""
    argv = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", *([value] if value != "true" else []))]

    with pytest.raises(ConfigError, match=told):
        scheduler(*argv)
