"""What applications share: downloads, checksums, and the reading of files."""
