"""The scheduler as a program: `python -m evener.scheduler`."""

from evener.scheduler.config import Config
from evener.service.program import main

if __name__ == "__main__":
    main("scheduler", Config, "evener.scheduler.service")
