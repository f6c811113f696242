"""Value maps: from the numbers of the data, in their own units, to the numbers that networks see, and back."""
