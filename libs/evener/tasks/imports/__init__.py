"""Importers: from what people publish to task directories in Harbor's format."""
