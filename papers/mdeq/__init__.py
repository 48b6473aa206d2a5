"""Chapter 3 of Bai 2022 (thesis): multiscale equilibrium networks."""
