"""Resumes a run: takes its folder, checks what has changed, and restores its tensors and the state of the loop."""
