"""What a run writes into its folder, and one way to read each of its files."""
