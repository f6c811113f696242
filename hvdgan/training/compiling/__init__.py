"""--jit: parts of a training step that XLA compiles."""
