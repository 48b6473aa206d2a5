"""Studies, such as the papers' tables and figures, measured again: points that resume.

`catalogue.names` lists them all; `equilibria reproduce` runs them.
"""
