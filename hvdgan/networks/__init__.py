"""Keras networks, one file per family; each is built by a function from its sizes."""
