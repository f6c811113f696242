"""What trained networks are used for: drawing samples and filling holes."""
