"""A service as a program. Imported before anything that takes long, so that `--help` answers at once."""

import importlib
import sys

from evener.service.config import ServiceConfig
from evener.service.config_app import Configs, config_app, run_app
from evener.service.exits import exit_code


def main(section: str, config_type: type[ServiceConfig], module: str) -> None:
    """Run one service as a program: `module` is the one with its `open_service`."""

    def run(configs: Configs) -> int:
        from evener.service.host import run_process  # noqa: PLC0415 - after `--help`
        from evener.service.supervisor import Wanted  # noqa: PLC0415

        config = configs[section]
        return run_process(config, [Wanted(name=section, config=config, open=importlib.import_module(module).open_service)])

    app = config_app(f"python -m evener.{section}", {section: config_type}, run)
    raise SystemExit(exit_code(lambda: run_app(app, sys.argv[1:]) or 0))
