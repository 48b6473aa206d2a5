"""Tasks that are drawn."""
