"""The errors of the client."""

from evener.proto.errors import EvenerError, Recoverable


class ClientError(EvenerError):
    """Look at the log of the service that answered."""


class Unreachable(ClientError, Recoverable):
    """Start Evener with `evener up`, or give the URL of a running one."""


class Unavailable(ClientError, Recoverable):
    """Try again in a moment. If it persists, look at GET /readyz and at the log."""


class Elsewhere(Unavailable):
    """Another instance of the service answers this, now or soon. Ask the other instances, then try again."""


class StandsBy(Elsewhere):
    """The scheduler that answered is not the active one. Name all schedulers, or try again in a moment: another is about to take over."""

    def __init__(self, what: str, active: str | None) -> None:
        super().__init__(what)
        self.active = active
        """The base URL of the active scheduler. None: the one that answered knows none."""


class TokenRefused(ClientError):
    """Give a token that the deployment knows: EVENER_TOKEN, or the file `operator-token` in the state folder of the running Evener."""


class NotTrusted(ClientError):
    """Name the authorities that sign its certificates: EVENER_TLS_CA_FILE for commands, `ca_file` in Python."""


class NotAllowed(ClientError):
    """Ask an administrator of this deployment for the role, or for somebody who has it."""


class RequestRefused(ClientError):
    """Correct the request and send it again."""

    def __init__(self, what: str, *, status: int, field: str | None = None) -> None:
        super().__init__(what)
        self.status = status
        """The HTTP status."""
        self.field = field
        """The field of the request that was wrong. None: no single field was."""
