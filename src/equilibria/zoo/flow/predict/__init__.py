"""Optical flow of a user's own frames, with a trained network or released weights.

`engine.go_through` takes pairs of frames in order and writes flow, a map of convergence and a row
for each into a journal, which a second call continues; `pictures` then draws all flow in colours of
one scale.
"""
