"""Starts ranks: what has started this process, what starts others, and their lines."""
