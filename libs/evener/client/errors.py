"""What can fail between a client and Evener."""

from evener.proto.errors import EvenerError, Recoverable


class ClientError(EvenerError):
    """Look at the log of the service that answered."""


class Unreachable(ClientError, Recoverable):
    """Start one with `evener up`, or give the URL of one that runs."""


class Unavailable(ClientError, Recoverable):
    """Try again in a moment; if it stays so, look at GET /readyz and at the log."""


class Elsewhere(Unavailable):
    """Another instance of the service answers this now, or soon. Ask the others, and again."""


class TokenRefused(ClientError):
    """Give the operator's token: EVENER_OPERATOR_TOKEN, or the file `operator-token` in the state folder of the one that runs."""


class RequestRefused(ClientError):
    """Correct the request and send it again."""

    def __init__(self, what: str, *, status: int, field: str | None = None) -> None:
        super().__init__(what)
        self.status = status
        """HTTP status."""
        self.field = field
        """What in the request was wrong. None: not one field."""
