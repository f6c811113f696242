"""Pages about runs: one HTML file each, which executes nothing that a run folder holds. Needs no TensorFlow."""
