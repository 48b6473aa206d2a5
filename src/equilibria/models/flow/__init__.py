"""Optical flow: RAFT, GMA and their equilibrium networks."""
