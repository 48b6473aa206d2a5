"""What a trained network says of a user's own images: classes, or a mask for each.

`engine.predict` goes through pictures and writes a row for each into a `Journal`, which a second
call continues.
"""

from equilibria.zoo.io.naming import PictureError, pictures
from equilibria.zoo.io.rows import Journal, JournalError, journal
from equilibria.zoo.vision.predict.engine import Large, Options, predict
from equilibria.zoo.vision.predict.seeing import iterate_batches

__all__ = [
    "Journal",
    "JournalError",
    "Large",
    "Options",
    "PictureError",
    "iterate_batches",
    "journal",
    "pictures",
    "predict",
]
