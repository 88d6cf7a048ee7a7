"""The error of this door."""

from evener.proto.errors import ConfigError


class Usage(ConfigError):
    """`evener COMMAND --help` tells what can be given."""
