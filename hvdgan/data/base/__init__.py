"""Source, and what every kind of source uses."""
