"""Starts the gateway that is measured as Evener's own programs start it: one arena of memory, before anything else is imported."""

import importlib

from evener.runtime.memory import share_one_arena

if __name__ == "__main__":
    share_one_arena()
    importlib.import_module("proofs.bench.gateway_served").main()
