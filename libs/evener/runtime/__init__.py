"""Helpers for code of every layer: threads, retries, the free space of a disk, fault points."""
