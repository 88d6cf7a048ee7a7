"""Turns an oracle's programs into ones that write their own reward: whether the tests believe them tells whether rewards can be forged."""

import io
import tarfile
from typing import Final

PYTHON: Final = b"""\
import os
for name, text in (("reward.json", '{"reward": 1}'), ("reward.txt", "1")):
    place = os.environ.get("EVENER_SANDBOX", "") + "/logs/verifier/" + name
    try:
        with open(place, "w") as file:
            file.write(text)
        os.chmod(place, 0o444)
    except OSError:
        pass
os._exit(0)
"""
SHELL: Final = b"""\
#!/bin/sh
for name in reward.json reward.txt; do
    place="$EVENER_SANDBOX/logs/verifier/$name"
    case $name in *.json) text='{"reward": 1}' ;; *) text=1 ;; esac
    echo "$text" 2> /dev/null > "$place" && chmod 444 "$place"
done
exit 0
"""
FIRST_BYTES: Final = 64


def forging(archive: bytes) -> bytes | None:
    """Return an archive of changes whose programs write their own reward. None: it has no programs. Raises tarfile.TarError. Blocks."""
    buffer = io.BytesIO()
    replaced = False
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as forged:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            program = None if content is None else _program(member, content.read(FIRST_BYTES))
            if program is not None:
                replaced, member.size = True, len(program)
                forged.addfile(member, io.BytesIO(program))
            else:
                forged.addfile(member, tar.extractfile(member) if member.isreg() else None)
    return buffer.getvalue() if replaced else None


def _program(member: tarfile.TarInfo, begins: bytes) -> bytes | None:
    """Return what takes the place of a program. None: the file is none."""
    first = begins.partition(b"\n")[0]
    if member.name.endswith(".py") or (first.startswith(b"#!") and b"python" in first):
        return PYTHON if not first.startswith(b"#!") else first + b"\n" + PYTHON
    is_script = member.name.endswith((".sh", ".bash")) or (first.startswith(b"#!") and first.rstrip().endswith(b"sh"))
    return SHELL if is_script or begins.startswith(b"\x7fELF") else None
