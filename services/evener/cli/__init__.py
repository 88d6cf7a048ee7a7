"""The command line: `evener`."""
