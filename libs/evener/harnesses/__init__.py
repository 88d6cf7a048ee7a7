"""One folder per harness: pinned version, install, head-less launch, how its exit is judged, its quirks as data."""
