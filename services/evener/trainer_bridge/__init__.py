"""The trainer_bridge service."""
