"""The memory of a run: what each stage is expected to take, what it has taken, and what to do if it is too much."""
