"""Reads the files of the task that a session worked on."""

import asyncio
from pathlib import Path

from evener.graders.port import GraderRefused, GradingContext
from evener.runtime.file_errors import is_of_files
from evener.runtime.folders import temporary_folder
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked


async def instruction(context: GradingContext) -> str:
    """Return the instruction that the agent got. Raises GraderRefused, BlobError."""
    data = await _archive(context)
    async with temporary_folder("evener-task-") as folder:
        try:
            return (await asyncio.to_thread(unpacked, data, folder)).instruction
        except TaskError as cause:
            raise GraderRefused(str(cause.args[0])) from cause


async def task_file(context: GradingContext, name: str) -> bytes:
    """Return the content of a file of the task. Raises GraderRefused, BlobError."""
    data = await _archive(context)
    async with temporary_folder("evener-task-") as folder:
        try:
            await asyncio.to_thread(unpacked, data, folder)
        except TaskError as cause:
            raise GraderRefused(str(cause.args[0])) from cause
        return await asyncio.to_thread(read_task_file, folder, name)


def read_task_file(folder: Path, name: str) -> bytes:
    """Return the content of a file of a task's directory. Raises GraderRefused, and OSError if the machine is at fault."""
    path = (folder / name).resolve()
    try:
        if not path.is_relative_to(folder.resolve()):
            msg = f"{name} leaves the task"
            raise GraderRefused(msg)
        return path.read_bytes()
    except OSError as cause:
        if not is_of_files(cause):
            raise
        msg = f"{name} of the task cannot be read: {cause.strerror}"
        raise GraderRefused(msg) from cause


async def _archive(context: GradingContext) -> bytes:
    spec = context.trajectory.spec
    if spec.task is None:
        msg = f"grader `{spec.grader.name}` needs a task; this session is a recording without one"
        raise GraderRefused(msg)
    return await context.blobs.get(spec.task.archive)
