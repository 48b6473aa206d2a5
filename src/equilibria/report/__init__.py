"""Reports: what runs measured, drawn on one self-contained page."""

from equilibria.report.document import page
from equilibria.report.rendering import start_page

__all__ = ["page", "start_page"]
