"""Watches a run between its steps: metrics, samples, evaluation, broken files, drift of the ranks, stopping."""
