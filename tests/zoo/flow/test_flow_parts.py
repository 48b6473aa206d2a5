"""Parts of `equilibria flow`: frames from files, where a solve begins, what fits into a time."""

import itertools
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run.data.storage import DataError
from equilibria.zoo.flow.predict.frames import Frame, find_frames, pair_frames, read_frame
from equilibria.zoo.flow.predict.tracking import Deadline, Follower, mismatch
from equilibria.zoo.io import video

# --- where a solve begins ------------------------------------------------------------------------


def smooth(seed, height=160, width=240):
    """A random image without detail, (3, height, width)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 6, 8, generator=generator) * 255
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0]


def shifted(image, x):
    """The image moved to the right by x pixels, its left edge repeated."""
    columns = (torch.arange(image.shape[2]) - x).clamp(0)
    return image[:, :, columns]


def moving(x):
    """A state whose flow is x pixels of the image to the right everywhere."""
    flow = torch.zeros(1, 2, 20, 30)
    flow[:, 0] = x / 8
    return torch.zeros(1, 4, 20, 30), flow


def test_the_right_flow_explains_the_second_image_and_another_does_not():
    first = smooth(0)
    second = shifted(first, 16)
    right, none, wrong = (mismatch(first, second, moving(x)[1][0]) for x in (16, 0, -16))
    assert right < 0.02 < 0.1 < none < wrong
    assert mismatch(first, smooth(1), moving(16)[1][0]) > 0.5


def test_images_of_one_colour_fit_or_do_not():
    gray = torch.full((3, 40, 40), 100.0)
    still = torch.zeros(2, 5, 5)
    assert mismatch(gray, gray, still) == 0.0
    assert mismatch(gray, gray + 50, still) == pytest.approx(1.0)


def test_a_flow_that_leaves_the_image_everywhere_is_still_judged():
    image = smooth(0)
    assert 0 < mismatch(image, image, torch.full((2, 20, 30), 1000.0)) < 5


def test_solves_follow_each_other_until_a_cut():
    follower, state = Follower(), moving(8)
    frames = [shifted(smooth(0), 8 * k) for k in range(4)]
    frames += [shifted(smooth(1), 8 * k) for k in range(4)]
    starts = []
    for number, (first, second) in enumerate(itertools.pairwise(frames)):
        found, why = follower.start(first, second, follows=number > 0)
        assert (found is state) == (why == "last")
        starts.append(why)
        follower.keep(state)
    assert starts == ["zero", "last", "last", "cut", "zero", "last", "last"]


@pytest.mark.parametrize("how", ["size", "gap", "failed"])
def test_a_solve_begins_without_motion_where_nothing_precedes_it(how):
    follower, image = Follower(), smooth(0)
    follower.start(image, image, follows=False)
    follower.keep(None if how == "failed" else moving(0))
    image = smooth(0, 160, 200) if how == "size" else image
    assert follower.start(image, image, follows=how != "gap") == (None, "zero")


def test_a_scene_in_violent_motion_is_not_cut_all_the_time():
    # Each frame shares little with the one before, and always as little.
    follower = Follower()
    frames = [0.5 * smooth(0) + 0.5 * smooth(k) for k in range(1, 9)]
    starts = []
    for number, (first, second) in enumerate(itertools.pairwise(frames)):
        starts.append(follower.start(first, second, follows=number > 0)[1])
        follower.keep(moving(0))
    assert starts[1] == "cut" and starts[3:] == ["last"] * 4


# --- what fits into a time -----------------------------------------------------------------------


def test_the_limit_is_what_evaluations_leave_room_for():
    deadline = Deadline(0.1)
    assert not deadline.knows((3, 8, 8))
    deadline.add(0.03, 0.05, 10)
    assert deadline.limit() == 12  # (.09 - .03) / .005
    for _ in range(2):
        deadline.add(0.03, 0.2, 10)
    assert deadline.limit() == 3  # the median is .02
    assert deadline.knows((3, 8, 8)) and not deadline.knows((3, 16, 8))


def test_one_evaluation_is_made_at_least():
    deadline = Deadline(0.001)
    deadline.add(1.0, 1.0, 1)
    assert deadline.limit() == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_deadline_is_positive(seconds):
    with pytest.raises(ValueError, match="a deadline must be positive; got"):
        Deadline(seconds)


# --- frames --------------------------------------------------------------------------------------


def deep_png(path):
    """Write a PNG file of 16-bit RGB, which Pillow reads as 8 bits."""

    def chunk(kind, data):
        return (
            len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        )

    header = (4).to_bytes(4, "big") * 2 + bytes([16, 2, 0, 0, 0])
    rows = zlib.compress((b"\0" + bytes(24)) * 4)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows)
    path.write_bytes(content + chunk(b"IEND", b""))


def test_sixteen_bits_of_colour_are_refused(tmp_path):
    deep_png(tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").mode == "RGB"
    with pytest.raises(DataError, match=r"a\.png has more than 8 bits a channel: convert it"):
        read_frame(tmp_path / "a.png")


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_is_refused(tmp_path, mode):
    Image.new(mode, (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png is grey"):
        read_frame(tmp_path / "a.png")


def test_frames_are_upright(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert (read_frame(tmp_path / "a.png").numpy() == np.rot90(pixels, -1).transpose(2, 0, 1)).all()


def test_frames_of_a_folder_are_in_natural_order_with_names_of_their_own(tmp_path):
    for name in ("b10.png", "b9.png", "B9.jpg", ".hidden.png", "notes.txt"):
        Image.new("RGB", (8, 8)).save(tmp_path / name, "PNG")
    (tmp_path / "inner").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "inner" / "a.png")
    frames = list(find_frames([tmp_path]))
    assert [frame.key for frame in frames] == [
        str(tmp_path / name) for name in ("B9.jpg", "b9.png", "b10.png")
    ]
    assert [frame.name for frame in frames] == ["B9", "b9-2", "b10"]


def test_no_frame_has_the_name_of_the_legend(tmp_path):
    for name in ("a.png", "Legend.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    assert [frame.name for frame in find_frames([tmp_path])] == ["Legend-2", "a"]


def test_pairs_follow_each_other():
    frames = [Frame(str(k), str(k), lambda: torch.zeros(3, 8, 8)) for k in range(3)]
    pairs = list(pair_frames(frames))
    assert [(p.first.key, p.second.key, p.name, p.follows) for p in pairs] == [
        ("0", "1", "0", False),
        ("1", "2", "1", True),
    ]


def test_a_video_leaves_out_frames_of_another_size(tmp_path):
    frames = [np.full((3, 8, side), 40 * k, np.uint8) for k, side in enumerate((8, 8, 10, 8))]
    assert video.write(tmp_path / "a.gif", frames) == 3
    read = [int(frame[0, 0, 0]) for frame in video.read(tmp_path / "a.gif")]
    assert read == [0, 40, 120]


def test_a_video_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no frame to write"):
        video.write(tmp_path / "a.gif", [])
    assert not (tmp_path / "a.gif").exists()


def test_a_video_that_is_cut_off_is_damaged(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (4, 3, 40, 40), np.uint8)
    video.write(tmp_path / "a.gif", noise)
    content = (tmp_path / "a.gif").read_bytes()
    (tmp_path / "a.gif").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"a\.gif is damaged"):
        list(video.read(tmp_path / "a.gif"))
