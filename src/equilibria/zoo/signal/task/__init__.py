"""Signals as networks of coordinates: a picture, a sound, a film or a shape that is learned."""
