"""Chapter 6 of Bai 2022: neural solvers of equilibrium models."""
