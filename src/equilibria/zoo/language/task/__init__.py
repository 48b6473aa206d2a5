"""Tasks on tokens."""
