"""Commands on images."""
