"""`python -m evener.sandbox_runner`: the sandbox-runner alone."""

from evener.sandbox_runner.config import Config
from evener.service.program import main

if __name__ == "__main__":
    main("sandbox_runner", Config, "evener.sandbox_runner.service")
