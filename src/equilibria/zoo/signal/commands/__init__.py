"""Commands on signals."""
