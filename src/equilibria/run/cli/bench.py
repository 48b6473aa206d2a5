"""Benchmark equilibria against torchdeq and SciPy, or, without a name, list the benchmarks.

All contestants solve the same problem in one process, to the same tolerance, interleaved. Every
answer is measured again; one that missed the tolerance is marked and not timed. Equivalent to
`equilibria reproduce bench/NAME`.
"""

from collections.abc import Sequence

from equilibria.run.cli import reproduce


def main(argv: Sequence[str]) -> None:
    """Run `equilibria bench` with the words `argv`."""
    reproduce.run("bench", __doc__, argv, "bench")
