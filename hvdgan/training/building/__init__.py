"""From a command line to a built run."""
