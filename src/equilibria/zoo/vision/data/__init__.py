"""Data sets of images."""
