"""Graders: they turn a session's result into its reward."""
