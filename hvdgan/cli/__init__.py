"""How a command reads its settings, ends and writes files. Imports no TensorFlow."""
