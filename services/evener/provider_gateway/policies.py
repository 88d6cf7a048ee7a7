"""The policies that this gateway renders for, opened once."""

from collections.abc import Sequence

from msgspec import Struct

from evener.templates.config import PolicyConfig
from evener.templates.open import open_renderer
from evener.templates.port import Renderer


class Policy(Struct, frozen=True, eq=False):
    """A policy's configuration and its renderer."""

    config: PolicyConfig
    renderer: Renderer


def open_policies(configs: Sequence[PolicyConfig]) -> dict[str, Policy]:
    """Return the policies by name. Raises TemplateError for a source that cannot be read."""
    return {config.name: Policy(config, open_renderer(config)) for config in configs}
