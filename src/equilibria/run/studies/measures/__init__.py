"""Measures shared by several studies."""
