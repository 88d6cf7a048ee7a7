"""The backends in which attempts are made: as they are, and with defences switched off."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from proofs.escape.world import World

from evener.sandboxes.bubblewrap import open_bubblewrap
from evener.sandboxes.config import BubblewrapConfig, DockerConfig
from evener.sandboxes.docker import DockerSandboxes
from evener.sandboxes.docker_api import Docker, open_docker
from evener.sandboxes.port import Sandboxes

DOCKER: Final = "docker"
BUBBLEWRAP: Final = "bubblewrap"
IMAGE: Final = "evener-base"
KILLS_NOTHING: Final = {"kills": False}
"""Loosens Docker so that nothing is killed when a program ends."""


class LoosenedDocker(Docker):
    """A daemon that is told to create other containers than the backend wants."""

    changes: Mapping[str, Any]

    @classmethod
    def of(cls, docker: Docker, changes: Mapping[str, Any]) -> "LoosenedDocker":
        """Return the same connection, with changes to each container's HostConfig."""
        loosened = cls.__new__(cls)
        loosened.__dict__.update(docker.__dict__)
        loosened.changes = changes
        return loosened

    async def post(self, at: str, body: object = None, **params: str) -> Any:
        if at.endswith("/kill") and self.changes == KILLS_NOTHING:
            return None
        if at == "/containers/create" and isinstance(body, dict):
            body = body | {"HostConfig": body["HostConfig"] | self.changes}
        return await super().post(at, body, **params)


@asynccontextmanager
async def open_docker_backend(
    world: World, loosened: Mapping[str, Any] | None = None, private_hosts: tuple[str, ...] = ()
) -> AsyncIterator[DockerSandboxes]:
    """Open Docker. `loosened`: what each container's HostConfig says instead. None: the backend as it is."""
    config = DockerConfig(host=f"unix://{world.docker}", image=IMAGE, private_hosts=private_hosts)
    async with open_docker(config.host) as docker:
        used = docker if loosened is None else LoosenedDocker.of(docker, _filled(loosened, world))
        yield DockerSandboxes(used, str(world.folder / "sandboxes" / DOCKER), config)


@asynccontextmanager
async def open_backend(world: World, kind: str) -> AsyncIterator[Sandboxes]:
    """Open a backend as it is."""
    if kind == DOCKER:
        async with open_docker_backend(world) as contained:
            yield contained
    else:
        async with open_bubblewrap(world.folder / "sandboxes" / kind, BubblewrapConfig()) as isolated:
            yield isolated


def _filled(value: Any, world: World) -> Any:
    """Return what a container is given, with the names of this machine's places."""
    match value:
        case str():
            return value.format(folder=world.folder, bundle=world.folder / "bundle", docker=world.docker)
        case dict():
            return {name: _filled(one, world) for name, one in value.items()}
        case list():
            return [_filled(one, world) for one in value]
        case _:
            return value
