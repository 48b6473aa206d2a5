"""Reasoning tasks: instances with one right answer, which a check recognizes."""
