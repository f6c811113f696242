"""A run: the loop, the step, what is restored and saved."""
