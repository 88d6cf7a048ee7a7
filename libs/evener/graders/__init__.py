"""From what a session left to a reward."""
