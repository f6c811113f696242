"""Checkpoints on the disk: write, read, verify, keep. Inspecting one needs no TensorFlow."""
