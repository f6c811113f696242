"""Where a run resumes: its folder, what may have changed since, and the values that it gets back."""
