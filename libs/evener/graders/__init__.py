"""Graders: from what a session left to its reward."""
