"""Models of images: multiscale equilibrium networks, and the networks they are compared with."""
