"""A task's MCP servers, as harnesses want to be told of them."""

from collections.abc import Iterable
from typing import Any, Final

from evener.harnesses.port import Harness
from evener.tasks.tables import McpServer, Transport

EVERY_TRANSPORT: Final = tuple(Transport)


def not_taken(harness: Harness, servers: Iterable[McpServer]) -> str | None:
    """Return why a harness cannot have a task's servers, in words. None: it can."""
    for server in servers:
        if server.transport not in harness.mcp_transports:
            return f"the task brings the MCP server {server.name!r} ({server.transport}), which the harness {harness.name} does not take"
    return None


def for_claude(servers: Iterable[McpServer]) -> dict[str, Any]:
    """Return servers by name, as `--mcp-config` has them."""
    kinds = {Transport.STDIO: "stdio", Transport.SSE: "sse", Transport.HTTP: "http"}
    return {server.name: {"type": kinds[server.transport], **_how(server, "url")} for server in servers}


def for_gemini(servers: Iterable[McpServer]) -> dict[str, Any]:
    """Return servers by name, as settings.json of the Gemini CLI and of Qwen Code has them. Their tools ask nobody."""
    address = {Transport.HTTP: "httpUrl"}
    return {server.name: {**_how(server, address.get(server.transport, "url")), "trust": True} for server in servers}


def _how(server: McpServer, address: str) -> dict[str, Any]:
    if server.transport is Transport.STDIO:
        return {"command": server.command, "args": server.args}
    return {address: server.url} | ({"headers": server.headers} if server.headers else {})
