"""The benchmark: equilibria's solvers and adjoints beside torchdeq's and SciPy's.

All in one process, on the same problems, to the same tolerance under one definition of the
residual, interleaved; every answer is measured anew.
"""
