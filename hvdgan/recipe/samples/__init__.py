"""What a sample consists of, and how its parts come out of a record of the data."""
