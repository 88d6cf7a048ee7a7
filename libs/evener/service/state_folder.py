"""What commands read in a state folder. They import this module instead of the services, which take a while to import."""

from typing import Final

from msgspec import Struct

STATE_FILE: Final = "evener.json"
TOKEN_FILE: Final = "operator-token"


class RunningUp(Struct, frozen=True, kw_only=True):
    """The content of the state file, by which commands find the running `evener up`."""

    url: str
    pid: int
