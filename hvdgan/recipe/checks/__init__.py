"""Checks what a user's recipe returns, and reports a mistake as one line that names its place in their file."""
