"""Distances between distributions: features of samples, and what is computed of them."""
