"""Small tar shards of images, in WebDataset layout."""

import numpy as np
from PIL import Image

from packed import tar_of
from pictures import content


def picture(number, side=8, mode="RGB", kind="png"):
    """The file of an image: noise on a ground that is dark or light, by the number's parity."""
    random = np.random.default_rng(number)
    pixels = (40 if number % 2 == 0 else 160) + random.integers(0, 60, (side, side, 3))
    return content(Image.fromarray(pixels.astype(np.uint8)).convert(mode), kind)


def write(path, samples):
    """A shard of samples, each a name and the content of its files by extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = ((f"{name}.{end}", each) for name, ends in samples for end, each in ends.items())
    path.write_bytes(tar_of(files))
    return path


def labeled(numbers, **options):
    """Samples of two classes, 0 and 1, by the parity of their numbers."""
    return [
        (f"{n:05}", {"png": picture(n, **options), "cls": str(n % 2).encode()}) for n in numbers
    ]


def folder(root, sizes=(7, 12, 5), test=(4, 6), **options):
    """Shards to learn from and to evaluate on, below a folder; samples are numbered through."""
    first = 0
    for split, counts in (("train", sizes), ("val", test)):
        for place, count in enumerate(counts):
            path = root / f"{split}-{place:03}.tar"
            write(path, labeled(range(first, first + count), **options))
            first += count
    return root
