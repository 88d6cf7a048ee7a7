"""`python -m evener.trainer_bridge`: the trainer-bridge alone."""

from evener.service.program import main
from evener.trainer_bridge.config import Config

if __name__ == "__main__":
    main("trainer_bridge", Config, "evener.trainer_bridge.service")
