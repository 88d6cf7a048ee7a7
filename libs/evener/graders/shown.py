"""What a judge is shown of a session besides the answer: its conversation, and the files that it changed."""

import asyncio
import io
import tarfile
from typing import Final

import msgspec

from evener.blobs.port import Blobs
from evener.graders.port import GraderRefused
from evener.graders.task_tests import changes_of
from evener.proto.codec import NOT_AN_EVENT, BadRecord
from evener.proto.trajectories import TrajectoryBuilt
from evener.sandboxes.port import Changes
from evener.tokens.conversation import conversation
from evener.tokens.digests import said
from evener.tokens.kept import unpack
from evener.tokens.kinds import main_branch

JUDGED_CHARACTERS: Final = 200_000
"""The limit of a conversation, and of all changed files together. The middle is left out."""
SHOWN_FILE_BYTES: Final = 20_000
"""The limit of a changed file."""


async def messages_of(trajectory: TrajectoryBuilt, blobs: Blobs) -> str:
    """Return the main conversation with its tool calls, a message as JSON a line. Raises GraderRefused, BlobError."""
    if trajectory.records is None:
        msg = f"session {trajectory.session_id} kept no records, so a judge cannot see its messages"
        raise GraderRefused(msg)
    data = await blobs.get(trajectory.records)
    try:
        return cut(await asyncio.to_thread(_messages, trajectory.session_id, data))
    except (BadRecord, KeyError, IndexError, *NOT_AN_EVENT) as cause:
        msg = f"the records of session {trajectory.session_id} cannot be read: {cause}"
        raise GraderRefused(msg) from cause


async def changes_text(trajectory: TrajectoryBuilt, blobs: Blobs) -> str:
    """Return the changed files with their text, and the names of the removed ones. Raises GraderRefused, BlobError."""
    changes = await changes_of(trajectory, blobs)
    return "" if changes is None else cut(await asyncio.to_thread(_files, changes))


def cut(text: str, most: int = JUDGED_CHARACTERS) -> str:
    """Return a text without its middle if it is long."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[... {len(text) - most} characters are left out ...]\n{text[-most // 2 :]}"


def _messages(session_id: str, data: bytes) -> str:
    session = unpack(session_id, data).session
    messages = conversation(session.forest, main_branch(session))
    return "\n".join(msgspec.json.encode(said(message)).decode() for message in messages)


def _files(changes: Changes) -> str:
    told: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(changes.archive)) as archive:
        for member in archive:
            if member.issym():
                told.append(f"--- /{member.name} -> {member.linkname}")
            elif member.isreg() and (file := archive.extractfile(member)) is not None:
                told.append(f"--- /{member.name}, {member.size} bytes\n{_text(file.read(SHOWN_FILE_BYTES), member.size)}")
    return "\n".join([*told, *(f"--- /{name} was removed" for name in changes.removed)])


def _text(data: bytes, size: int) -> str:
    if b"\0" in data:
        return "[not text]"
    return data.decode(errors="replace") + (f"\n[... {size - len(data)} bytes are left out]" if size > len(data) else "")
