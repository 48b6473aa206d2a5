"""Our solvers, gradients and compiled cells, beside those of peers."""
