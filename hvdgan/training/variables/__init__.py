"""The variables of a run, and how checkpoints name them."""
