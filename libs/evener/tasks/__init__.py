"""Task directories in Harbor's format: read, checked, packed, unpacked. `bundled/` holds the tasks of the demo."""
