"""The files that a command writes: whole or not at all, locked, and never over others unasked."""
