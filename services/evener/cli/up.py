"""`evener up`: all six services in one process, on the embedded bus, with an engine. Its options are the configuration of all."""

import importlib

from evener.cli.config import Config
from evener.service.config import SECTIONS, ServiceConfig
from evener.service.config_app import Configs, config_app

SERVICES = tuple(name for name in SECTIONS if name != "up")
SERVICE_CONFIGS: dict[str, type[ServiceConfig]] = {name: importlib.import_module(f"evener.{name}.config").Config for name in SERVICES}


def run_up(configs: Configs) -> int:
    """Run until SIGTERM."""
    from evener.cli.all_in_one import run_together

    return run_together(configs)


up = config_app("up", {"up": Config, **SERVICE_CONFIGS}, run_up)
