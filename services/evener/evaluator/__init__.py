"""The evaluator service."""
