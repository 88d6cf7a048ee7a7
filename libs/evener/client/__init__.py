"""Evener's HTTP API from outside: submit, watch, export. Light imports."""
