"""Agarwala and Schoenholz 2022: what weights to start from."""
