"""`python -m evener.reconstructor`."""

from evener.reconstructor.config import Config
from evener.service.program import main

if __name__ == "__main__":
    main("reconstructor", Config, "evener.reconstructor.service")
