"""Measures what a run has learned: held-out samples one by one, and generated against real ones as sets."""
