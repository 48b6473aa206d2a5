"""The papers' tables and figures, measured again: one file per study, points that resume.

`catalogue.names` lists them all; `equilibria reproduce` runs them.
"""
