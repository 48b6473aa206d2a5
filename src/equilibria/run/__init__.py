"""The frame: recipes, training, evaluation, reports, exports, studies and the command line.

It knows no application: each registers what it offers by name, see `registry`.
"""
