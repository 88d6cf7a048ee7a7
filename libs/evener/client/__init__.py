"""The Python client of Evener's HTTP API: submit, watch, export. Its imports are light."""
