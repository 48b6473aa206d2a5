"""What a report shows of images."""
