"""One self-contained HTML page of a run's groups. It loads nothing, needs no build, and escapes everything that a model wrote."""
