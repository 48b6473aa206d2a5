"""Chapter 7 of Bai 2022 (thesis): optical flow at equilibrium."""
