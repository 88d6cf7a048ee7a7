"""TLS contexts of clients and servers, from PEM files."""

import ssl
from pathlib import Path

from evener.proto.errors import ConfigError


class TlsFileUnusable(ConfigError):
    """Name PEM files that can be read: a certificate with its chain, the key that belongs to it (without a passphrase), the authorities."""


def client_context(ca_file: str | None, certificate_file: str | None = None, key_file: str | None = None) -> ssl.SSLContext:
    """Return the context of a client that checks names and certificates of servers. Raises TlsFileUnusable.

    `ca_file`: the authorities to trust. None: those of the system. The certificate, if there is one, is shown to servers that ask for it.
    """
    try:
        context = ssl.create_default_context(cafile=_path(ca_file))
    except OSError as cause:
        msg = f"cannot use the authorities in {ca_file}: {cause.strerror or cause}"
        raise TlsFileUnusable(msg) from cause
    if certificate_file is not None:
        load_certificate(context, certificate_file, key_file)
    return context


def server_context(certificate_file: str, key_file: str | None) -> ssl.SSLContext:
    """Return the context of a server with this certificate. Raises TlsFileUnusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate_file, key_file)
    return context


def load_certificate(context: ssl.SSLContext, certificate_file: str, key_file: str | None) -> None:
    """Show this certificate in handshakes from now on. `key_file` None: the key is in the same file. Raises TlsFileUnusable."""
    try:
        context.load_cert_chain(str(_path(certificate_file)), _path(key_file), password=_no_passphrase)
    except (OSError, ValueError) as cause:
        files = certificate_file if key_file is None else f"{certificate_file} with the key in {key_file}"
        msg = f"cannot use the certificate in {files}: {(isinstance(cause, OSError) and cause.strerror) or cause}"
        raise TlsFileUnusable(msg) from cause


def _path(file: str | None) -> str | None:
    return None if file is None else str(Path(file).expanduser())


def _no_passphrase() -> str:
    """Raise an error instead of asking for a password at the terminal, because a service has nobody to answer."""
    msg = "the key has a passphrase"
    raise ValueError(msg)
