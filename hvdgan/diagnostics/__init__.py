"""Checks of hvdgan doctor and measurements of hvdgan bench."""
