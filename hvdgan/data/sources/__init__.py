"""The sources of images: one kind per module."""
