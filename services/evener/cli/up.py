"""`evener up`: all six services in one process, on the embedded bus, with an engine."""

import importlib
import os
from typing import Annotated

from cyclopts import App, Parameter

from evener.cli.config import Config
from evener.service.config import SECTIONS, ServiceConfig, load_all

SERVICES = tuple(name for name in SECTIONS if name != "up")


def run_up(*words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Run until SIGTERM. Options are the configuration: see `evener up --help`."""
    types: dict[str, type[ServiceConfig]] = {"up": Config}
    types |= {name: importlib.import_module(f"evener.{name}.config").Config for name in SERVICES}
    configs = load_all(types, words, os.environ)
    from evener.cli.together import run_together

    return run_together(configs)


up = App(name="up", help_flags=[], version_flags=[], result_action="return_value")
up.default(run_up)
