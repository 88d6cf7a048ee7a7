"""The formats of trainers: a module each, with the trainer's own field names. No trainer is imported."""
