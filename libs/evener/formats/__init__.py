"""The formats in which trainers and people read groups and rows. Pure."""
