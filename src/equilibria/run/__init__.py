"""Recipes, the training loop, and run folders."""
