"""Pages about runs: one HTML file each, made from files that nobody trusts. Needs no TensorFlow."""
