"""Keras networks, one file per family; a network is a function of its numbers."""
