"""Tasks on graphs."""
