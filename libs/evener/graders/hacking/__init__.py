"""Detectors of reward hacking: what the agent did, by its calls and its changed files, that serves its reward and not its task."""
