"""What applications share: downloads and files, and what tasks make of samples, tokens and rows."""
