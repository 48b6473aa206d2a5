"""What a trained network says of a user's own images: classes, or a mask for each.

`engine.predict` goes through pictures and writes a row for each into a `Journal`, which a second
call continues.
"""

from equilibria.predict.engine import Large, Options, predict
from equilibria.predict.naming import PictureError, pictures
from equilibria.predict.rows import Journal, JournalError, journal
from equilibria.predict.unlabelled import unlabelled

__all__ = [
    "Journal",
    "JournalError",
    "Large",
    "Options",
    "PictureError",
    "journal",
    "pictures",
    "predict",
    "unlabelled",
]
