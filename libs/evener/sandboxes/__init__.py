"""Where a harness or a grader runs: the port and its backends."""
