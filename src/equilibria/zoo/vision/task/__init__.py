"""Tasks on images."""
