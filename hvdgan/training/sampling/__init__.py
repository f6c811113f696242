"""Drawing samples by their numbers, for the commands and for evaluations."""
