"""Files and folders that are written whole, and locks."""
