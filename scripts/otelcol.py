"""Finds an OpenTelemetry collector, or builds one: from its Go modules, once, into the user's cache folder.

`python scripts/otelcol.py` prints its path. The one that is built receives OTLP over HTTP and gRPC and sends it on over HTTP.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

VERSION: Final = "v0.124.0"
STABLE: Final = "v1.30.0"
"""The version of the modules that are stable, released together with VERSION."""
CORE: Final = "go.opentelemetry.io/collector"
MANIFEST: Final = f"""\
dist: {{name: otelcol, output_path: source, version: {VERSION}}}
receivers: [{{gomod: {CORE}/receiver/otlpreceiver {VERSION}}}]
processors: [{{gomod: {CORE}/processor/batchprocessor {VERSION}}}]
exporters: [{{gomod: {CORE}/exporter/debugexporter {VERSION}}}, {{gomod: {CORE}/exporter/otlphttpexporter {VERSION}}}]
providers: [{{gomod: {CORE}/confmap/provider/fileprovider {STABLE}}}, {{gomod: {CORE}/confmap/provider/envprovider {STABLE}}}]
"""


class OtelcolMissing(Exception):
    """Install otelcol, or Go, which builds it."""


def otelcol() -> str:
    """Return the path of the program. Raises OtelcolMissing."""
    if found := shutil.which("otelcol"):
        return found
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "evener" / f"otelcol-{VERSION}"
    program = folder / "otelcol"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(folder)
    return str(program)


def _build(folder: Path) -> None:
    """Let the collector's builder write the source; then compile it. The builder's own way also fetches what only tests need."""
    if shutil.which("go") is None:
        msg = "neither otelcol nor Go is in PATH"
        raise OtelcolMissing(msg)
    (folder / "manifest.yaml").write_text(MANIFEST)
    source = folder / "source"
    _run(folder, "run", f"{CORE}/cmd/builder@{VERSION}", "--skip-get-modules", "--skip-compilation", "--config", "manifest.yaml")
    _run(source, "get", f"{CORE}/internal/telemetry@{VERSION}")
    _run(source, "build", "-mod=mod", "-o", "../otelcol", ".")


def _run(folder: Path, *words: str) -> None:
    environ = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(["go", *words], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"go {words[0]} failed: {done.stderr[-1000:]}"
        raise OtelcolMissing(msg)


if __name__ == "__main__":
    print(otelcol())
