"""Networks of fields and volumes."""
