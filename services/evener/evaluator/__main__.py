"""`python -m evener.evaluator`: the evaluator alone."""

from evener.evaluator.config import Config
from evener.service.program import main

if __name__ == "__main__":
    main("evaluator", Config, "evener.evaluator.service")
