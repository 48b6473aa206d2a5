"""Reports: what runs measured, drawn on one self-contained page."""

from equilibria.run.report.document import page

__all__ = ["page"]
