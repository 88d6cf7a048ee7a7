"""The durable log behind Evener: the port and its two implementations."""
