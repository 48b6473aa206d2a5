"""Data sets of images: with a class for each image or pixel, and streamed from shards."""
