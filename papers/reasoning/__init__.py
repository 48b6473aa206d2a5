"""Tasks on which depth pays: learned on small instances, solved on larger ones by iterating."""

PAPER = ""
