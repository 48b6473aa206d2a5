"""Small tar shards of images, in WebDataset layout."""

import io
import tarfile

import numpy as np
from PIL import Image


def picture(number, side=8, mode="RGB", kind="png"):
    """The file of an image: noise on a ground that is dark or light, by the number's parity."""
    random = np.random.default_rng(number)
    pixels = (40 if number % 2 == 0 else 160) + random.integers(0, 60, (side, side, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(file, kind)
    return file.getvalue()


def write(path, samples):
    """A shard of samples, each a name and the content of its files by extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, files in samples:
            for extension, content in files.items():
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
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
