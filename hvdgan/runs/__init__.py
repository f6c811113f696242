"""Files of a run folder: events, metrics, evaluations; one way to read them."""
