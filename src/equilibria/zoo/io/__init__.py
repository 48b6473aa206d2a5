"""What applications share: downloads, checksums, reading of files, and helpers of their tasks."""
