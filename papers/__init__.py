"""The papers: their studies, and the numbers that they print."""
