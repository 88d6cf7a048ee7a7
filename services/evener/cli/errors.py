"""The error of wrong usage."""

from evener.proto.errors import ConfigError


class Usage(ConfigError):
    """`evener COMMAND --help` lists the arguments."""
