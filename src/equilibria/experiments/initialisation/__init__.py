"""Agarwala and Schoenholz 2022: how an equilibrium network is started decides how it learns."""
