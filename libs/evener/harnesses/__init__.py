"""Harnesses, one folder each: pinned version, installation, headless launch, how its exit is classified, and its quirks as data."""
