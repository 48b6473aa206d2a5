"""Instances of reasoning tasks, generated from a seed or read from files."""
