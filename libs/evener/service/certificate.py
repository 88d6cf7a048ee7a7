"""The certificate of a process's listener, which somebody else renews: it is loaded again when its files change."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

import structlog

from evener.runtime.tls import TlsFileUnusable, load_certificate, server_context
from evener.service.config import ServiceConfig

CERTIFICATE_POLL_SECONDS: Final = 60.0
"""How often the files are looked at."""

log = structlog.get_logger()


class Certificate:
    """The certificate and its key, as the configuration names them."""

    def __init__(self, certificate_file: str, key_file: str | None) -> None:
        """Load the certificate. Raises TlsFileUnusable."""
        self._files = certificate_file, key_file
        self._seen = self._state_of_files()
        self.context: Final[ssl.SSLContext] = server_context(certificate_file, key_file)
        """What handshakes use, from the next one on also after a renewal."""

    async def watch(self, look_seconds: float = CERTIFICATE_POLL_SECONDS) -> None:
        """Load the certificate again whenever it changes, for ever. One that cannot be used is logged, and the old one stays."""
        while True:
            await asyncio.sleep(look_seconds)
            if (state := self._state_of_files()) == self._seen:
                continue
            self._seen = state
            try:
                load_certificate(self.context, *self._files)
            except TlsFileUnusable as unusable:
                log.error("certificate_not_renewed", error=str(unusable))
            else:
                log.info("certificate_renewed", file=self._files[0])

    def _state_of_files(self) -> list[tuple[int, int] | None]:
        return [_state_of(Path(file).expanduser()) for file in self._files if file is not None]


def certificate_of(config: ServiceConfig) -> Certificate | None:
    """Return the certificate of the listener. None: it speaks HTTP in the clear. Raises ConfigError."""
    if config.tls_certificate_file is None:
        return None
    return Certificate(config.tls_certificate_file, config.tls_key_file)


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
