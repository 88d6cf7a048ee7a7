"""`python -m evener.provider_gateway`."""

from evener.provider_gateway.config import Config
from evener.service.program import main

if __name__ == "__main__":
    main("provider_gateway", Config, "evener.provider_gateway.service")
