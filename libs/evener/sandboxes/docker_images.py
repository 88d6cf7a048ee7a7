"""Images of the `docker` backend: pulled by reference, or built from a task's Dockerfile and kept by content."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import structlog

from evener.proto.sandbox import ImageBuild
from evener.sandboxes.docker_api import Docker, DockerError
from evener.sandboxes.docker_files import tar_of_folder
from evener.sandboxes.port import ImageMissing

log = structlog.get_logger()


class DockerImages:
    """The images of a daemon. Each is pulled or built once, however many sandboxes wait for it."""

    def __init__(self, docker: Docker, build_network: str) -> None:
        """`build_network`: the Docker network in which images are built."""
        self._docker = docker
        self._build_network = build_network
        self._building: dict[str, asyncio.Lock] = {}

    async def get(self, wanted: str | ImageBuild) -> Mapping[str, Any]:
        """Return the daemon's description of an image, which is pulled or built if it is missing. Raises ImageMissing, DockerError."""
        tar = b""
        if isinstance(wanted, ImageBuild):
            tar = await asyncio.to_thread(tar_of_folder, Path(wanted.context))
            digest = hashlib.sha256(wanted.dockerfile.encode() + b"\0" + tar).hexdigest()
            name = f"evener-built:{digest[:32]}"
        else:
            name = wanted
        async with self._building.setdefault(name, asyncio.Lock()):
            found = await self._inspected(name)
            if found is None and isinstance(wanted, ImageBuild):
                await self._build(name, wanted.dockerfile, tar)
            elif found is None:
                await self._pull(name)
            found = found or await self._inspected(name)
        if found is None:
            msg = f"there is no image {name}"
            raise ImageMissing(msg)
        return found

    async def _inspected(self, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._docker.get(f"/images/{name}/json")
        except DockerError as cause:
            if cause.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return found

    async def _build(self, name: str, dockerfile: str, tar: bytes) -> None:
        began = time.monotonic()
        params = {"t": name, "dockerfile": dockerfile, "forcerm": "true", "networkmode": self._build_network}
        await self._told("build the image", "POST", "/build", tar, **params)
        log.info("image_built", image=name, seconds=round(time.monotonic() - began, 1))

    async def _pull(self, name: str) -> None:
        reference, _, tag = name.partition("@") if "@" in name else name.rpartition(":")
        if not reference or "/" in tag:  # it has no tag; a colon may stand before a port
            reference, tag = name, "latest"
        await self._told(f"pull the image {name}", "POST", "/images/create", fromImage=reference, tag=tag)

    async def _told(self, doing: str, method: str, path: str, body: object = None, **params: str) -> None:
        """Ask for something that the daemon tells about line by line. Raises ImageMissing with the last lines if it fails."""
        lines: list[str] = []
        try:
            async with self._docker.stream(method, path, body, **params) as response:
                async for told in _json_lines(response):
                    lines = [*lines[-10:], str(told.get("stream") or told.get("error") or "").rstrip()]
                    if "error" in told:
                        msg = f"cannot {doing}: {' | '.join(line for line in lines if line)}"
                        raise ImageMissing(msg)
        except DockerError as cause:
            if cause.status == 0:
                raise
            msg = f"cannot {doing}: {cause.args[0]}"
            raise ImageMissing(msg) from cause


async def _json_lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    kept = b""
    async for data in response.content.iter_any():
        *lines, kept = (kept + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield msgspec.json.decode(line)
