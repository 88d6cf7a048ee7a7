"""Task directories that no packer would make, and manifests that are wrong: each is refused when it is submitted, with its reason."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import Site

TIB: Final = 1 << 40
GOOD: Final = {
    "instruction.md": b"Do it.",
    "task.toml": b'[task]\nname = "a/b"\n[metadata.evener]\ngrader = "answer"\nexpected = "42"\nmatch = "number"\n',
}
BAD_REQUEST, CONFLICT, SERVER_ERROR = 400, 409, 500


def tar(*members: tarfile.TarInfo | tuple[str, bytes], files: dict[str, bytes] = GOOD, form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar of files, and of members that are odd."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for member in (*files.items(), *members):
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    """Return a member without content."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def manifest(text: str | bytes) -> bytes:
    """Return a task with this task.toml."""
    return tar(files={**GOOD, "task.toml": text if isinstance(text, bytes) else text.encode()})


def oversized() -> bytes:
    """Return a tar whose last header says that a terabyte follows."""
    return tar()[:-10240] + member("huge", size=TIB).tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def sparse() -> bytes:
    """Return a tar with a file that is a terabyte of nothing, as GNU tar writes it."""
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "hole", "GNU.sparse.realsize": str(TIB)}
    return tar(member("hole", pax_headers=headers, size=0))


async def submit(site: Site, data: bytes, name: str = "a/b", **options: Any) -> tuple[int, bytes]:
    """Put an archive and submit it as a task; return the status and the answer. An accepted task is cancelled."""
    digest = hashlib.sha256(data).hexdigest()
    put = await site.control("PUT", f"/blobs/{digest}", data)
    if put.status >= BAD_REQUEST:
        return put.status, put.body
    task_id = site.name("archive")
    given = {"harness": {"name": "script"}, "grader": {"name": "answer", "options": {"expected": "42"}}, "run_id": "hostile", **options}
    ref = {"name": name, "digest": digest, "archive": {"digest": digest, "size": len(data)}}
    answered = await site.control("POST", "/tasks", msgspec.json.encode({"task_id": task_id, "task": ref, "options": given}))
    if answered.status < BAD_REQUEST:
        site.tasks.append(task_id)
        await site.control("DELETE", f"/tasks/{task_id}")
        await site.ended(task_id)
    return answered.status, answered.body


def archive(name: str, made: Callable[[], bytes], *, refused: bool | None = True, **given: Any) -> Input:
    """Return the input that submits an archive. `refused`: with what is to be mended. False: taken. None: either."""

    async def act(site: Site) -> None:
        status, said = await submit(site, made())
        wrong = status >= SERVER_ERROR or status == CONFLICT or (refused is not None and refused is not (status >= BAD_REQUEST))
        if wrong or (status >= BAD_REQUEST and not msgspec.json.decode(said)["error"]["message"]):
            msg = f"{status} {said[:300]!r}"
            raise Unexpected(msg)

    return Input(kind=Kind.ARCHIVES, name=name, act=act, **given)


ARCHIVES: Final = (
    archive("a good one", tar, refused=False),
    archive("nothing", lambda: b""),
    archive("no tar", lambda: b"x" * 100_000),
    archive("a tar that is cut", lambda: tar()[:700]),
    archive("a header that says 1 TB", oversized),
    archive("a sparse file of 1 TB", sparse),
    archive("a name above the folder", lambda: tar(("../evil", b"x"))),
    archive("a name above the folder, inside", lambda: tar(("tests/../../evil", b"x"))),
    archive("an absolute name", lambda: tar(("/nosuch/evil", b"x"))),
    archive("an empty name", lambda: tar(("", b"x")), refused=None),
    archive("a link outwards", lambda: tar(member("tests", tarfile.SYMTYPE, linkname="/etc"))),
    archive("a file below a link outwards", lambda: tar(member("tests", tarfile.SYMTYPE, linkname="/nosuch"), ("tests/evil", b"x"))),
    archive("links in a ring", lambda: tar(*(member(a, tarfile.SYMTYPE, linkname=b) for a, b in (("a", "b"), ("b", "a")))), refused=None),
    archive("a hard link outwards", lambda: tar(member("passwd", tarfile.LNKTYPE, linkname="/etc/passwd"))),
    archive("a device", lambda: tar(member("zero", tarfile.CHRTYPE, devmajor=1, devminor=5))),
    archive("a named pipe", lambda: tar(member("pipe", tarfile.FIFOTYPE))),
    archive("a named pipe as instruction", lambda: tar(member("instruction.md", tarfile.FIFOTYPE), files={"task.toml": GOOD["task.toml"]})),
    archive("a folder as instruction", lambda: tar(member("instruction.md", tarfile.DIRTYPE), files={"task.toml": GOOD["task.toml"]})),
    archive("the same name twice", lambda: tar(("instruction.md", b"Something else.")), refused=None),
    archive("a file and a folder of one name", lambda: tar(("tests", b"x"), ("tests/test.sh", b"true")), refused=None),
    archive("100,000 members", lambda: tar(*((f"f{n}", b"") for n in range(100_000))), seconds=60),
    archive("a path of 5,000 folders", lambda: tar(("d/" * 5000 + "f", b"x"))),
    archive("a name of 300 characters", lambda: tar(("n" * 300, b"x"))),
    archive("a name of 1 MB", lambda: tar(("n" * (1 << 20), b"x"))),
    archive(
        "names that are no UTF-8", lambda: tar((b"\xff\xfe".decode(errors="surrogateescape"), b"x"), form=tarfile.GNU_FORMAT), refused=None
    ),
    archive("names with newlines and controls", lambda: tar(("a\nb\x1b[2J", b"x")), refused=None),
    archive("an instruction that is no UTF-8", lambda: tar(files={**GOOD, "instruction.md": b"\xff\xfe"})),
    archive("an instruction of nothing", lambda: tar(files={**GOOD, "instruction.md": b""}), refused=None),
    archive("an instruction of 30 MB", lambda: tar(files={**GOOD, "instruction.md": b"a" * (30 << 20)}), refused=None),
    archive("no instruction", lambda: tar(files={"task.toml": GOOD["task.toml"]})),
    archive("task.toml: rubbish", lambda: manifest("= = =")),
    archive("task.toml: no UTF-8", lambda: manifest(b"\xff\xfe")),
    archive("task.toml: 100,000 levels", lambda: manifest("a = " + "[" * 100_000 + "]" * 100_000)),
    archive("task.toml: 1,000,000 dots", lambda: manifest("a" + ".a" * 1_000_000 + " = 1"), seconds=60),
    archive("task.toml: 10 MB of comment", lambda: manifest(b"#" * (10 << 20) + b"\n" + GOOD["task.toml"]), refused=None),
    archive("task.toml: a list as table", lambda: manifest("task = [1]")),
    *(
        archive(
            f"task.toml: a time limit of {value[:20]}",
            partial(manifest, f"{GOOD['task.toml'].decode()}[agent]\ntimeout_sec = {value}\n"),
        )
        for value in ("nan", "-1", "0", '"soon"', "true")
    ),
    *(
        archive(
            f"task.toml: a time limit of {value[:20]}",
            partial(manifest, f"{GOOD['task.toml'].decode()}[verifier]\ntimeout_sec = {value}\n[agent]\ntimeout_sec = {value}\n"),
            refused=None,
        )
        for value in ("inf", "1e308", "1e-308", "9" * 400)
    ),
    archive(
        "task.toml: a working directory above the root",
        lambda: manifest(GOOD["task.toml"].decode() + '[environment]\nworkdir = "/../../x"\n'),
    ),
    archive(
        "task.toml: a relative working directory",
        lambda: manifest(GOOD["task.toml"].decode() + '[environment]\nworkdir = "x"\n'),
        refused=None,
    ),
    archive(
        "task.toml: a working directory with NUL", lambda: manifest(GOOD["task.toml"].decode() + '[environment]\nworkdir = "/a\\u0000"\n')
    ),
    archive("task.toml: another grader", lambda: manifest('[metadata.evener]\ngrader = "rm"\n')),
    archive(
        "task.toml: a name of 10,000 characters", lambda: manifest(GOOD["task.toml"].decode().replace("a/b", "n" * 10_000)), refused=None
    ),
    archive(
        "task.toml: a name of emoji and controls",
        lambda: manifest(GOOD["task.toml"].decode().replace("a/b", "\U0001f600\\n\\u001b[2J/../..")),
        refused=None,
    ),
)
