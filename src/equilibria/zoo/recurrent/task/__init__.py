"""Classification of sequences."""
