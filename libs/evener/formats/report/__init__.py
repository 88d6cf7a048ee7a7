"""One self-contained HTML page of a run's groups. No requests, no build; everything that a model wrote is escaped."""
