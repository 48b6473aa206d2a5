"""Studies, one file each, in a folder for each paper; see `experiments.catalogue`."""
