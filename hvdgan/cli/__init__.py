"""A command line: how a command starts, shows its help, and ends. Imports no TensorFlow."""
