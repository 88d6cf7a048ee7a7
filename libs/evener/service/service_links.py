"""Variables that Kubernetes sets in every pod for each Service of the namespace: a Service named `evener` sets EVENER_PORT, for example.

They look like keys of ours and are none. They are recognised by their shape, so that a misspelt key is still an error.
"""

import re
from collections.abc import Mapping
from typing import Final

SHAPES: Final = (
    (r"\w+_SERVICE_HOST", r".+"),
    (r"\w+_SERVICE_PORT(_\w+)?", r"\d+"),
    (r"\w+_PORT", r"(tcp|udp|sctp)://.+"),
    (r"\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?", r".+"),
)
"""Name and value of each kind of variable."""


def service_links(environ: Mapping[str, str], prefix: str) -> frozenset[str]:
    """Return the variables with this prefix that are service links."""
    return frozenset(name for name, value in environ.items() if name.startswith(prefix) and _is_link(name, value))


def _is_link(name: str, value: str) -> bool:
    return any(re.fullmatch(of_name, name) and re.fullmatch(of_value, value) for of_name, of_value in SHAPES)
