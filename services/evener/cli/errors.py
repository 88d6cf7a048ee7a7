"""The error of wrong usage."""

from evener.proto.errors import ConfigError


class Usage(ConfigError):
    """`evener COMMAND --help` lists the arguments."""

    command = "COMMAND"
    """The words of the command that was used, once they are known."""

    def __str__(self) -> str:
        """Return what is wrong, then which help says what is right."""
        return super().__str__().replace("evener COMMAND --help", help_of(self.command))


def help_of(command: str) -> str:
    """Return the words that show a command's help. An empty command is all of Evener."""
    return f"evener {command} --help" if command else "evener --help"
