"""Measures of sequence models that studies of several papers share."""
