"""Which files of a sandbox can be part of changes."""

from evener.sandboxes.port import UNTRACKED


def tracked(name: str) -> bool:
    """Return whether a name (a place without its leading slash) can be part of changes."""
    return not any(f"/{name}" == place or f"/{name}".startswith(f"{place}/") for place in UNTRACKED)
