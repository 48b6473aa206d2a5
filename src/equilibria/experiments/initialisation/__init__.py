"""Agarwala and Schoenholz 2022, Deep equilibrium networks are sensitive to initialization statistics."""
