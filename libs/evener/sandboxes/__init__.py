"""Sandboxes, in which harnesses and graders run: the port and its backends."""
