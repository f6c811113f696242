"""Distances between two sets of samples, from sums that add up over batches and ranks. Needs NumPy alone."""
