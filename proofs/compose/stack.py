"""The compose file as it runs: started, scaled, asked and removed."""

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct
from proofs.compose.docker import compose_words, run
from proofs.compose.errors import Wrong
from proofs.compose.stand_ins import TREE
from scripts.kafka import free_ports

FOLDER: Final = TREE / "compose"
PROJECT: Final = "evener-check"
LIMIT_SECONDS: Final = 900.0
"""How long anything may take: machines that do this are busy."""
POLL_SECONDS: Final = 2.0

Found = TypeVar("Found")


class Container(Struct, frozen=True):
    """A container of the project."""

    service: str
    running: bool
    exit_code: int
    health: str
    """`healthy`, `starting`, `unhealthy`; empty for one without a check."""
    image: str
    user: str
    read_only: bool


class Stack:
    """One run of the file, under a project name of its own."""

    def __init__(self, images: Mapping[str, str]) -> None:
        """`images`: the variables of .env that are replaced."""
        self.port, self.prometheus_port = free_ports(2)
        self._words = compose_words()
        self._environ = {
            **images,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_PROFILES": "embedded",
            "PUBLISHED_PORT": str(self.port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
        }

    def compose(self, *words: str) -> str:
        """Run a command of compose; return what it printed."""
        return run(*self._words, *words, environ=self._environ, folder=FOLDER)

    def containers(self) -> list[Container]:
        """Return all containers, ended ones too."""
        found = run("docker", "ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}").split()
        return [_container(one) for one in json.loads(run("docker", "inspect", *found))] if found else []

    def until_well(self) -> list[Container]:
        """Wait until every container is healthy, or has ended well if it is one that ends. Return them."""

        def well() -> list[Container] | None:
            containers = self.containers()
            for one in containers:
                if not one.running and one.exit_code:
                    msg = f"{one.service} ended with {one.exit_code}"
                    raise Wrong(msg)
            sick = [one for one in containers if (one.health not in {"", "healthy"} if one.running else one.exit_code)]
            return containers if containers and not sick else None

        return until("all containers are healthy", well)

    def fleet(self) -> list[dict[str, Any]]:
        """Return the instances of the fleet. Empty: no scheduler answers now."""
        token = (FOLDER / "secrets/operator-token").read_text().strip()
        told = ask(f"http://127.0.0.1:{self.port}/fleet", authorization=f"Bearer {token}")
        return list(told.get("instances", ())) if told else []

    def query(self, expression: str) -> float | None:
        """Return the value of an expression of Prometheus. None: there is none."""
        told = ask(f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        found = told["data"]["result"] if told else []
        return float(found[0]["value"][1]) if found else None

    def logs(self) -> str:
        """Return the last lines of every container."""
        return self.compose("logs", "--no-color", "--tail", "20")

    def remove(self) -> None:
        """Remove everything, volumes too."""
        self._environ["COMPOSE_PROFILES"] = "embedded,vllm,observability,cli"
        self.compose("down", "--volumes", "--remove-orphans")


def until(what: str, look: Callable[[], Found | None]) -> Found:
    """Return what `look` finds. Raises Wrong if it finds nothing for too long."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_SECONDS)
    msg = f"not within {LIMIT_SECONDS:.0f} s: {what}"
    raise Wrong(msg)


def ask(url: str, **headers: str) -> Any:
    """Return the JSON at a URL of this machine. None: nobody answers with success."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:  # noqa: S310 - loopback
            return json.load(answer)
    except (urllib.error.URLError, OSError):
        return None


def draw_secrets() -> None:
    """Draw the secrets of the compose folder, if they are not there."""
    run(str(FOLDER / "draw-secrets"))


def _container(told: Mapping[str, Any]) -> Container:
    state = told["State"]
    return Container(
        service=told["Config"]["Labels"]["com.docker.compose.service"],
        running=state["Running"],
        exit_code=state["ExitCode"],
        health=state.get("Health", {}).get("Status", ""),
        image=told["Config"]["Image"],
        user=told["Config"]["User"],
        read_only=told["HostConfig"]["ReadonlyRootfs"],
    )


def default_cache() -> Path:
    """Return the folder of a daemon of our own."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evener" / "docker"
