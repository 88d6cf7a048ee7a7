"""Task directories in Harbor's format: finding, checking, packing and unpacking them. `bundled/` holds the tasks of the demo."""
