"""Engines, which sample: the port, its adapters, the check at start, and the scripted engine of the tests."""
