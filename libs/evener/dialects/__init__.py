"""Converts the wire formats of model providers to the canonical form and back. Pure."""
