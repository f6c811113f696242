"""Where images come from: one kind of source per module."""
