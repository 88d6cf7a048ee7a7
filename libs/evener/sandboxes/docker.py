"""The `docker` backend: a container for each sandbox.

A container has no network: the relay listens on its loopback, which is the only thing there. It has no capabilities, gains no privileges,
and makes only the system calls of a list. Its root is read-only where the task allows it. When its program ends, the whole container is
killed, so that nothing of it is left running.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from evener.proto.sandbox import SandboxSpec
from evener.sandboxes.config import DockerConfig
from evener.sandboxes.docker_api import UNIX, Docker, DockerError, open_docker
from evener.sandboxes.docker_container import LABEL, container_name, container_of
from evener.sandboxes.docker_images import DockerImages
from evener.sandboxes.docker_sandbox import DockerSandbox
from evener.sandboxes.hold import held
from evener.sandboxes.port import ANY_SANDBOX

REMOVE_CONTAINER_SECONDS: Final = 30.0
LISTENING_SECONDS: Final = 2.0
log = structlog.get_logger()


class DockerSandboxes:
    """The backend, opened by `open_docker_sandboxes`."""

    def __init__(self, docker: Docker, owner: str, config: DockerConfig) -> None:
        self._docker = docker
        self._owner = owner
        self._config = config
        self._trouble = ""
        self._has_quotas = True
        self._reaping = asyncio.Lock()
        self._reaped = False
        self._images = DockerImages(docker, config.build_network)

    def trouble(self) -> str:
        return self._trouble

    @asynccontextmanager
    async def open(self, name: str, spec: SandboxSpec = ANY_SANDBOX) -> AsyncIterator[DockerSandbox]:
        await self.reap()
        image = await self._images.get(spec.image or self._config.image)
        created = await self._created(container_of(image, spec, self._config, self._owner), container_name(self._owner, name))
        sandbox = DockerSandbox(self._docker, created, image, spec, self._config)
        try:
            await sandbox.prepare()
            yield sandbox
        finally:
            await asyncio.shield(self._close(sandbox, name))

    async def reap(self) -> None:
        """Remove the containers that an earlier process of this folder left. It is done once, before anything is opened."""
        async with self._reaping:
            if not self._reaped:
                await self._reap()
                self._reaped = True

    async def _reap(self) -> None:
        filters = msgspec.json.encode({"label": [f"{LABEL}={self._owner}"]}).decode()
        left = await self._docker.get("/containers/json", all="true", filters=filters)
        for container in left:
            log.info("container_removed", container=container["Id"][:12], names=container["Names"])
            await self._docker.delete(f"/containers/{container['Id']}", force="true", v="true")

    async def watch(self) -> None:
        """Keep knowing whether the daemon answers."""
        while True:
            await asyncio.sleep(5 if self._trouble else 15)
            await self.look()

    async def look(self) -> None:
        """Find out whether the daemon answers, and remove what an earlier process left."""
        try:
            async with asyncio.timeout(REMOVE_CONTAINER_SECONDS):
                await self.reap()
                await self._docker.get("/version")
            self._trouble = ""
        except (DockerError, TimeoutError) as cause:
            self._trouble = str(cause.args[0]) if cause.args else f"the Docker daemon at {self._docker.host} does not answer"

    async def _created(self, wanted: dict[str, Any], name: str) -> str:
        """Return the id of a new container.

        If the daemon cannot limit the bytes written, this is logged once, and the container has no limit.
        """
        host = wanted["HostConfig"]
        if not self._has_quotas:
            host["StorageOpt"] = {}
        try:
            made = await self._docker.post("/containers/create", wanted, name=name)
        except DockerError as cause:
            if not host["StorageOpt"] or "storage-opt" not in str(cause):
                raise
            self._has_quotas = False
            log.warning("no_disk_limit", reason=str(cause.args[0]), mend="keep Docker's data on XFS with pquota")
            return await self._created(wanted, name)
        return str(made["Id"])

    async def _close(self, sandbox: DockerSandbox, name: str) -> None:
        try:
            async with asyncio.timeout(REMOVE_CONTAINER_SECONDS):
                await sandbox.remove()
        except (DockerError, TimeoutError) as cause:
            log.warning("sandbox_not_removed", sandbox=name, error=str(cause), mend="the next start tries again")


def is_wanted(config: DockerConfig | None) -> bool:
    """Return whether this process has the backend: it is configured, or a daemon listens at the usual socket. Blocks."""
    if config is not None:
        return True
    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(LISTENING_SECONDS)
        return tried.connect_ex(DockerConfig().host.removeprefix(UNIX)) == 0


@asynccontextmanager
async def open_docker_sandboxes(root: Path, config: DockerConfig) -> AsyncIterator[DockerSandboxes]:
    """Open the backend. The folder `root`, which it holds, names its containers: those of a dead process are removed.

    If the daemon does not answer, that is its `trouble`, and it is asked again and again. Raises SandboxHeld if a living process has the
    folder.
    """
    root = await asyncio.to_thread(root.resolve)
    async with AsyncExitStack() as stack:
        stack.enter_context(held(root))
        docker = await stack.enter_async_context(open_docker(config.host))
        sandboxes = DockerSandboxes(docker, str(root), config)
        await sandboxes.look()
        watching = asyncio.create_task(sandboxes.watch())
        stack.callback(watching.cancel)
        yield sandboxes


def lacks(spec: SandboxSpec) -> tuple[str, ...]:  # noqa: ARG001 - it has everything
    """Return what Docker cannot give, in words: nothing."""
    return ()
