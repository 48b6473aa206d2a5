"""Going through frames: the flow of each pair, its files and its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equilibria import files
from equilibria.run.data.storage import DataError
from equilibria.solve import Status
from equilibria.zoo.flow.data import FlowField, write_flow
from equilibria.zoo.flow.predict.frames import FramePair
from equilibria.zoo.flow.predict.network import FlowEstimate, FlowNetwork
from equilibria.zoo.flow.predict.tracking import Deadline, Follower
from equilibria.zoo.io.colors import change_colors, color_png
from equilibria.zoo.io.rows import Journal, JournalLayout

FOLDER = JournalLayout(
    rows="flow.jsonl",
    table="flow.csv",
    folders=("flow", "clean", "final", "convergence", "colours"),
    files=("flow", "convergence"),
)
"""What is in a folder of optical flow."""

WARM_UP = 3
"""Evaluations of the trial that times one, where there is a deadline and no earlier pair."""

KITTI_MOST = 511.98
"""Pixels that flow in a PNG file can be at most."""


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """How frames are processed.

    Args:
        ending: of the files of flow: ".flo", ".pfm" or ".png".
        reuse: start each solve from the previous pair's equilibrium; see `Follower`.
        compare: every N-th pair that was started so is solved from zero too; 0 for none.
        deadline: seconds for a pair; see `Deadline`.
        maps: draw a convergence map of each pair.
    """

    ending: str = ".flo"
    reuse: bool = False
    compare: int = 10
    deadline: float | None = None
    maps: bool = True


def go_through(
    network: FlowNetwork,
    pairs: Iterable[FramePair],
    journal: Journal,
    options: FlowOptions,
    *,
    folder: str = "flow",
    progress: Callable[[Mapping[str, Any]], object] = lambda row: None,
    announce: Callable[[str], object] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Write the flow and a row of each pair that has none yet.

    Args:
        network: finds the flow.
        pairs: in order.
        journal: where rows go.
        options: how.
        folder: inside the journal's, for the flow files; "" where the pairs' names have folders.
        progress: called with each row.
        announce: called with a sentence before much memory is taken.
        stop: asked before each pair.

    Returns:
        Whether there is nothing left: False where `stop` ended it.
    """
    follower = Follower() if options.reuse else None
    deadline = None if options.deadline is None else Deadline(options.deadline)
    for place in {part.parent for part in journal.folder.glob("**/.*.tmp")}:
        files.clear(place)  # of a process that was killed while it wrote
    images = _Images()
    size: tuple[int, ...] = ()
    warm = 0
    for pair in pairs:
        if pair.first.key in journal.done:
            if follower is not None:
                follower.keep(None)
            continue
        if stop():
            return False
        try:
            first, second = images.pair(pair)
            check_pair(network, pair, first, second)
        except DataError as error:
            row: dict[str, Any] = {**_names(pair), "result": "error", "error": str(error)}
            if follower is not None:
                follower.keep(None)
        else:
            if tuple(first.shape) != size:
                size = tuple(first.shape)
                announce(memory_of(network, *size[1:]))
            state, begun = None, "zero"
            if follower is not None:
                state, begun = follower.start(first, second, follows=pair.follows)
            limit = None if deadline is None else allow_evals(deadline, network, first, second)
            found = network.estimate(first, second, state, limit)
            if deadline is not None:
                deadline.add(found.other, found.solving, found.evaluations)
            if follower is not None:
                follower.keep(_choose_state(found, limit))
            row = row_of(pair, found, network, options, begun, limit)
            if begun == "last":
                warm += 1
                if options.compare and warm % options.compare == 1 % options.compare:
                    row |= _compare(network.estimate(first, second, None, limit), found)
            row |= _write_pair(journal.folder, pair, found, options, folder)
        journal.add([row])
        progress(row)
    return True


def allow_evals(deadline: Deadline, network: FlowNetwork, first: Tensor, second: Tensor) -> int:
    """Return how many evaluations the deadline allows; one of that size is timed first."""
    if not deadline.knows(tuple(first.shape)):
        # The first call of all prepares what later ones find ready.
        network.estimate(first, second, max_evals=1)
        trial = network.estimate(first, second, max_evals=WARM_UP)
        deadline.add(trial.other, trial.solving, trial.evaluations)
    return deadline.limit()


def memory_of(network: FlowNetwork, height: int, width: int) -> str:
    """Return a sentence on the memory that grows with the square of the pixels."""
    config = network.model.config
    taken = config.correlation_bytes(1, height, width)
    form, hint = config.correlation, ""
    if form == "all-pairs" and taken > 2e9:
        hint = "; --correlation on-demand takes far less, and more time"
    attention = config.attention_bytes(1, height, width)
    more = f", the attention {_bytes(attention)}" if attention else ""
    return (
        f"Images of {height} x {width} pixels (height x width): the correlation ({form}) takes "
        f"{_bytes(taken)}{more}{hint}"
    )


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def row_of(
    pair: FramePair,
    found: FlowEstimate,
    network: FlowNetwork,
    options: FlowOptions,
    start: str = "zero",
    limit: int | None = None,
) -> dict[str, Any]:
    """Return what is written of a pair.

    Args:
        pair: of images.
        found: its flow.
        network: that found it.
        options: see there.
        start: where the solve began.
        limit: evaluations that a deadline allowed; None without one.
    """
    row: dict[str, Any] = {**_names(pair), "result": "ok"}
    row["height"], row["width"] = found.flow.shape[1:]
    row["evaluations"] = found.evaluations
    if found.status is not None:
        row["status"] = found.status.name
        row["residual"] = found.residual
    row["moves"] = round(found.moves, 6)
    row["length"] = round(float(found.flow.norm(dim=0).mean()), 6)
    milliseconds = 1000 * (found.solving + found.other)
    row["milliseconds"] = round(milliseconds, 3)
    if options.reuse:
        row["start"] = start
    if limit is not None:
        ended = found.status in (None, Status.MAX_EVALS) and found.evaluations >= limit
        row["allowed"] = min(limit, network.limit)
        row["stopped"] = ended and limit < network.limit
        row["late"] = milliseconds > 1000 * (options.deadline or 0)
    return row


def field_of(flow: Tensor, ending: str) -> tuple[FlowField, int]:
    """Return a flow as a file can hold it, and how many pixels had to be cut to that.

    Args:
        flow: (2, height, width) in pixels.
        ending: of the file; ".png" holds up to 512 pixels.

    Raises:
        DataError: the flow is not finite.
    """
    cut = 0
    if ending == ".png":
        inside = flow.clamp(-KITTI_MOST, KITTI_MOST)
        cut = int((inside != flow).any(0).sum())
        flow = inside
    try:
        return FlowField.dense(flow), cut
    except ValueError as error:
        raise DataError(f"the network's flow cannot be used: {error}") from None


def _write_pair(
    folder: Path, pair: FramePair, found: FlowEstimate, options: FlowOptions, inside: str
) -> dict[str, Any]:
    """Write the files of a pair; return what its row says of them."""
    try:
        field, cut = field_of(found.flow, options.ending)
    except DataError as error:
        return {"result": "error", "error": f"{pair.first.key}: {error}"}
    path = Path(inside, f"{pair.name}{options.ending}")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    write_flow(folder / path, field)
    row: dict[str, Any] = {"flow": path.as_posix()}
    if cut:
        row["cut_to_512"] = cut
    if options.maps:
        chart = Path("convergence", f"{pair.name}.png")
        (folder / chart).parent.mkdir(parents=True, exist_ok=True)
        content = color_png(change_colors(found.change.numpy()))
        files.write(folder / chart, lambda file: file.write(content), flush=False)
        row["convergence"] = chart.as_posix()
    return row


def _compare(cold: FlowEstimate, warm: FlowEstimate) -> dict[str, Any]:
    """What the same pair takes from zero, and how far its flow is from the other."""
    distance = (cold.flow - warm.flow).double().square().sum(0).mean().sqrt()
    return {
        "evaluations_from_zero": cold.evaluations,
        "status_from_zero": None if cold.status is None else cold.status.name,
        "distance_from_zero": round(float(distance), 6),
    }


def _choose_state(found: FlowEstimate, limit: int | None) -> tuple[Tensor, Tensor] | None:
    """The state of an estimate where the next solve may begin there: of a solve that converged, or
    was stopped by a deadline. One that failed would be carried on from pair to pair."""
    stopped = limit is not None and found.status == Status.MAX_EVALS
    finite = all(bool(each.isfinite().all()) for each in found.state)
    return found.state if finite and (found.status == Status.CONVERGED or stopped) else None


def _names(pair: FramePair) -> dict[str, str]:
    return {"path": pair.first.key, "second": pair.second.key}


def check_pair(network: FlowNetwork, pair: FramePair, first: Tensor, second: Tensor) -> None:
    """Refuse images of two sizes, or too small ones.

    Raises:
        DataError: they are; the message names their files.
    """
    if first.shape != second.shape:
        (high, wide), (other_high, other_wide) = first.shape[1:], second.shape[1:]
        raise DataError(
            f"{pair.first.key} has {high} x {wide} pixels and {pair.second.key} {other_high} x "
            f"{other_wide} (height x width): both images must have the same size"
        )
    try:
        network.check(*first.shape[1:])
    except ValueError as error:
        raise DataError(f"{pair.first.key}: {error}") from None


class _Images:
    """The newest images: the second one of a pair is the first one of the next."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def pair(self, pair: FramePair) -> tuple[Tensor, Tensor]:
        """Both images of a pair, decoded at most once in a row.

        Raises:
            DataError: one cannot be read.
        """
        for frame in (pair.first, pair.second):
            if frame.key not in self._held:
                self._held[frame.key] = frame.load()
        first, second = self._held[pair.first.key], self._held[pair.second.key]
        self._held = {pair.second.key: second}
        return first, second
