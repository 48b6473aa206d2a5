"""Sequence models: equilibrium, explicit and recurrent, over one kind of vocabulary."""
