"""What the data are, as a recipe sees them, and how samples are shown to people."""
