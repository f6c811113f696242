"""Reading a run folder that nobody trusts."""
