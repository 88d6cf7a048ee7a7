"""Configuration of the reconstructor."""

from evener.proto.spec import Strategy
from evener.service.config import ServiceConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sessions become trajectories."""

    strategy: Strategy = Strategy.TREE
    """How rows are cut: `tree`, or `per_call` to compare."""
