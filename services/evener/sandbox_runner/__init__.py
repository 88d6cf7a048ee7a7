"""The sandbox_runner service."""
