"""A session of a task, to be graded by any grader in real local sandboxes."""

import io
import json
import tarfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.builders import built

from evener.blobs.open import open_blobs
from evener.graders.port import Allowed, Grade, GradingContext
from evener.graders.registry import grader_for
from evener.proto.reasons import ExitCause
from evener.proto.sessions import Artifact
from evener.proto.spec import GraderPart, GraderSpec
from evener.proto.trajectories import CallSummary, HarnessExit
from evener.sandboxes.local import LocalSandboxes, open_local
from evener.tasks.pack import pack


class GradingBench:
    """Grades a session that gave an answer and left files."""

    def __init__(self, folder: Path, sandboxes: LocalSandboxes) -> None:
        self._folder = folder
        self._sandboxes = sandboxes
        self.evidence: dict[str, bytes] = {}

    async def grade(
        self,
        grader: str,
        options: Mapping[str, str] | None = None,
        *,
        parts: Sequence[GraderPart] = (),
        answer: str | None = "4",
        files: Mapping[str, str] | None = None,
        changed: Mapping[str, str] | None = None,
        archive: bytes | None = None,
        removed: Sequence[str] = (),
        lost: str | None = None,
        steps: Mapping[str, Mapping[str, str]] | None = None,
        records: bytes | None = None,
        allowed: Allowed | None = None,
    ) -> Grade:
        """Return the grade. `files` are of the task; `evidence` is then what the grading left.

        The agent left the files `changed`, or an archive of them; or none, because they were lost for a reason; or files after each step.
        """
        task = self._folder / "task"
        written = {"instruction.md": "What is 2 + 2?", "task.toml": '[metadata.evener]\nexpected = "4"\n', **(files or {})}
        for name, text in written.items():
            (task / name).parent.mkdir(parents=True, exist_ok=True)
            (task / name).write_text(text)
            (task / name).chmod(0o755 if name.endswith(".sh") else 0o644)
        packed = pack(task)
        blobs = open_blobs("memory://")
        await blobs.put(packed.data)
        kept = {"changes.tar": archive or archive_of(changed or {}), "removed.json": json.dumps(removed).encode()} if lost is None else {}
        if steps is not None:
            kept = {f"steps/{step}/changes.tar": archive_of(files) for step, files in steps.items()}
        kept["harness.log"] = b"done"
        left = HarnessExit(
            cause=ExitCause.EXITED,
            detail=lost or "",
            artifacts=tuple([Artifact(name=name, blob=await blobs.put(data)) for name, data in kept.items()]),
        )
        calls = tuple(CallSummary(call_id=f"c{n}", attempt=1, sampled_tokens=3, opened_at=float(n)) for n in (1, 2))
        spec = GraderSpec(name=grader, options=dict(options or {}), parts=tuple(parts))
        kept_records = None if records is None else await blobs.put(records)
        given: dict[str, Any] = {"answer": answer, "exit": left, "calls": calls, "records": kept_records}
        given |= {} if records is None else {"session_id": "t.0"}
        context = GradingContext(
            trajectory=built(given=given, task=packed.ref, grader=spec),
            blobs=blobs,
            sandboxes=self._sandboxes,
            name="grading",
            allowed=allowed or Allowed(),
            evidence=self.evidence,
        )
        return await grader_for(grader)(context)


def archive_of(files: Mapping[str, str]) -> bytes:
    """Return a tar of files: name to text."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[GradingBench]:
    """Yield a bench that keeps its files in a folder."""
    async with open_local(folder / "grading") as sandboxes:
        yield GradingBench(folder, sandboxes)
