"""The reconstructor service."""
