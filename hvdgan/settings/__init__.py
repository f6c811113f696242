"""The settings of a run, as flags and as files."""
