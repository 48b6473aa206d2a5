"""The applications, one folder for each, which registers what it offers by its `APPLICATION`."""

APPLICATIONS = (
    "vision",
    "language",
    "recurrent",
    "graph",
    "flow",
    "signal",
    "reasoning",
    "synthetic",
)
"""The folders, in the order in which what they offer is listed."""
