"""Whether an address can be reached from this machine only."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether an address or name is one of loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
