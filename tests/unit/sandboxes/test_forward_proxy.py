"""Which hosts a declared network lets through."""

import ipaddress

import pytest

from evener.proto.sandbox import Network, NetworkMode
from evener.sandboxes.forward_proxy import allows, reachable

LISTED = Network(
    mode=NetworkMode.ALLOWLIST, hosts=("packages.example.net", "*.example.org", "203.0.113.7", "198.51.100.0/24", "2001:db8::/32")
)


@pytest.mark.parametrize(
    "host",
    ["packages.example.net", "Packages.Example.NET.", "a.example.org", "a.b.example.org", "203.0.113.7", "198.51.100.9", "2001:db8::1"],
)
def test_hosts_of_an_allowlist_are_let_through(host: str) -> None:
    assert allows(LISTED, host)


@pytest.mark.parametrize(
    "host",
    [
        "notpackages.example.net",
        "packages.example.net.evil.net",
        "example.org",
        "badexample.org",
        "203.0.113.8",
        "198.51.101.1",
        "2001:db9::1",
        "",
        "*",
    ],
)
def test_other_hosts_are_not(host: str) -> None:
    """Neither those whose names only end or begin alike."""
    assert not allows(LISTED, host)


def test_public_network_allows_every_name_and_no_network_none() -> None:
    """Where a public name leads is looked at when it is resolved."""
    assert allows(Network(mode=NetworkMode.PUBLIC), "anything.net")
    assert not allows(Network(mode=NetworkMode.NONE), "anything.net")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1", "fe80::1", "::ffff:10.0.0.1", "224.0.0.1"],  # noqa: S104
)
def test_addresses_that_are_not_public_are_not_reached(address: str) -> None:
    """This machine, its network, a cloud's metadata."""
    assert not reachable(ipaddress.ip_address(address), ())


def test_private_ranges_are_reached_by_configuration() -> None:
    """A mirror of packages."""
    assert reachable(ipaddress.ip_address("8.8.8.8"), ())
    assert reachable(ipaddress.ip_address("10.1.2.3"), ("10.1.0.0/16",))
    assert not reachable(ipaddress.ip_address("10.2.2.3"), ("10.1.0.0/16",))
