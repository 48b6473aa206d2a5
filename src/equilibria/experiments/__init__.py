"""The papers' tables and figures, measured again: one file per table or figure, cases that resume.

`registry.EXPERIMENTS` names them all; `equilibria reproduce` runs them.
"""
