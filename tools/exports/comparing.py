"""Compares clew with ONNX Runtime on one model, with new values at every call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
Session = Callable[[Feed], Sequence[Array]]
TOLERANCE = 1e-4  # of the largest absolute value of an output
_SMALL = 1e-3  # errors of smaller outputs are relative to this, as of near-zero probabilities
_CALLS = (2, 9)  # the least and the largest number of calls
_SECONDS = 8.0
_AMPLIFIED = 5  # a difference of up to this many times the noise is noise
JUDGED = (0, 1, 2)  # seeds for the comparison with a third engine


class PeerError(Exception):
    """ONNX Runtime failed, and clew had not failed before."""


@dataclass
class Result:
    """The result for one model. Times are wall-clock seconds; those of later calls are medians.

    `later` counts calls after the first, `built_later` those in which clew compiled anything.
    `noise` is the largest change that ONNX Runtime's own optimizations or the last bit of the
    inputs cause; it is measured only if the engines differ, since a network that amplifies rounding
    proves nothing. The `f64` errors are those of both engines against torch in f64 (see `judged`).
    `fixed_sizes`: the peer refuses other sizes.
    """

    status: str = "agrees"
    error: str = ""
    difference: float = 0.0
    noise: float = 0.0
    f64_error: float = 0.0
    peer_f64_error: float = 0.0
    compile_s: float = 0.0
    first_s: float = 0.0
    later_s: float = 0.0
    peer_first_s: float = 0.0
    peer_later_s: float = 0.0
    fixed_sizes: bool = False
    later: int = 0
    built_later: int = 0
    deciding: list[str] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """How much faster than ONNX Runtime later calls are: 2 is twice as fast."""
        return self.peer_later_s / self.later_s if self.later_s else 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def compare(
    path: Path,
    draw: Callable[[int], Feed],
    others: Callable[[int], Feed] | None = None,
    phase: Callable[[str], None] = lambda name: None,
) -> Result:
    """Runs both engines interleaved on drawn inputs, `draw(seed)`, never twice on the same values.

    `others` draws inputs of other sizes, for models that accept them; their times do not count.
    `phase` receives the current phase.
    """
    import clew  # noqa: PLC0415 - a child process tells its parent before it begins

    found = Result()
    phase("onnxruntime")
    peer = onnxruntime_session(path)
    expected, found.peer_first_s = timed(peer, draw(0))
    phase("compile")
    messages: list[str] = []
    started = time.perf_counter()
    compiled = clew.compile(path, threads=1, cache=False, on_progress=messages.append)
    found.compile_s = time.perf_counter() - started

    run = _session(compiled)
    phase("first call")
    outputs, found.first_s = timed(run, draw(0))
    judge(outputs, expected, found)
    phase("later calls")
    ours, theirs = [], []
    for seed in seeds():
        feed = draw(seed)
        expected, spent = timed(peer, feed)
        theirs.append(spent)
        before = len(messages)
        outputs, spent = timed(run, feed)
        ours.append(spent)
        found.built_later += len(messages) > before
        judge(outputs, expected, found)
    found.later = len(ours)
    found.later_s, found.peer_later_s = statistics.median(ours), statistics.median(theirs)
    found.deciding = [spec.name for spec in compiled.inputs if spec.decides]
    if others is not None:
        _at_other_sizes(run, peer, others(1), found, phase)
    if found.status == "differs":
        phase("noise")
        plain = onnxruntime_session(path, optimized=False)
        feeds = [draw(seed) for seed in range(found.later + 1)]
        found.noise = max(
            worst(other, peer(feed))
            for feed in feeds
            for other in (plain(feed), peer(_rounded_otherwise(feed)))
        )
        if found.difference <= _AMPLIFIED * found.noise < float("inf"):
            found.status = "noisy"
    return found


def _rounded_otherwise(feed: Feed) -> Feed:
    """Returns inputs with each float replaced by the next larger number."""
    return {
        name: np.nextafter(value, np.inf, dtype=value.dtype) if value.dtype.kind == "f" else value
        for name, value in feed.items()
    }


def _at_other_sizes(
    run: Session, peer: Session, feed: Feed, found: Result, phase: Callable[[str], None]
) -> None:
    """Runs both once more. Exporters make constants of some sizes: then the peer refuses others."""
    phase("other sizes of onnxruntime")
    try:
        expected = peer(feed)
    except PeerError:
        found.fixed_sizes = True
        return
    phase("other sizes")
    judge(run(feed), expected, found, "at other sizes: ")


def judged(path: Path, draw: Callable[[int], Feed], truth: Mapping[str, Array]) -> Result:
    """Returns the largest errors of both engines against `truth`, torch's outputs in f64."""
    import clew  # noqa: PLC0415 - as above

    run, peer = _session(clew.compile(path, threads=1)), onnxruntime_session(path)
    found = Result()
    for seed in JUDGED:
        feed = draw(seed)
        ours, theirs = run(feed), peer(feed)
        exact = [truth[f"{seed}.{n}"] for n in range(len(theirs))]
        found.f64_error = max(found.f64_error, worst(_wide(ours), _wide(exact)))
        found.peer_f64_error = max(found.peer_f64_error, worst(_wide(theirs), _wide(exact)))
    return found


def _wide(values: Sequence[Array]) -> list[Array]:
    return [v.astype(np.float64) if v.dtype.kind == "f" else v for v in values]


def _session(compiled: Any) -> Session:
    """Returns a compiled model's runs; exporters leave out inputs that nothing reads."""
    taken = {spec.name for spec in compiled.inputs}

    def run(feed: Feed) -> Sequence[Array]:
        given = {name: value for name, value in feed.items() if name in taken}
        return _tensors(compiled.run(given).values())

    return run


def _tensors(outputs: Iterable[Any]) -> list[Array]:
    """Returns outputs as tensors: sequences as their elements, and maps as their values in the
    order of the keys. Values of maps become f32 again, since ONNX Runtime returns Python floats.
    """
    found: list[Array] = []
    for output in outputs:
        if isinstance(output, Mapping):
            values = np.array([output[key] for key in sorted(output)])
            found.append(values.astype(np.float32) if values.dtype.kind == "f" else values)
        elif isinstance(output, (list, tuple)):
            found.extend(_tensors(output))
        else:
            found.append(output)
    return found


def seeds() -> Iterator[int]:
    """Yields a few seeds, as many as fit the time."""
    started = time.perf_counter()
    for seed in range(1, _CALLS[1] + 1):
        if seed > _CALLS[0] and time.perf_counter() - started > _SECONDS:
            return
        yield seed


def timed(session: Session, feed: Feed) -> tuple[Sequence[Array], float]:
    """Returns the outputs and the seconds of one run."""
    started = time.perf_counter()
    outputs = session(feed)
    return outputs, time.perf_counter() - started


def onnxruntime_session(path: Path, optimized: bool = True) -> Session:
    """Returns ONNX Runtime on one thread, with its usual optimizations or none.

    It raises PeerError, and so do its runs.
    """
    import onnxruntime  # noqa: PLC0415 - a peer

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise PeerError(str(error)) from None
    taken = {spec.name for spec in session.get_inputs()}

    def run(feed: Feed) -> Sequence[Array]:
        given = {name: value for name, value in feed.items() if name in taken}
        try:
            outputs = session.run(None, given)
        except Exception as error:
            raise PeerError(str(error)) from None
        return _tensors(outputs)

    return run


def judge(
    outputs: Sequence[Array], expected: Sequence[Array], found: Result, where: str = ""
) -> None:
    """Notes the largest difference, and the first thing that makes the two disagree."""
    if not found.largest:
        found.largest = [_largest(value) for value in expected]
        found.shapes = [list(value.shape) for value in expected]
    for number, (ours, theirs) in enumerate(zip(outputs, expected, strict=True)):
        if ours.shape != theirs.shape:
            _disagree(found, f"{where}output {number} has shape {ours.shape}, not {theirs.shape}")
            continue
        error = difference(ours, theirs)
        found.difference = max(found.difference, error)
        if error > TOLERANCE:
            _disagree(found, f"{where}output {number} differs by {error:.1e} of its largest value")


def _disagree(found: Result, text: str) -> None:
    if found.status == "agrees":
        found.status, found.error = "differs", text


def worst(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """Returns the largest `difference` of outputs; infinity where shapes differ."""
    return max(
        difference(a, b) if a.shape == b.shape else float("inf")
        for a, b in zip(ours, theirs, strict=True)
    )


def difference(ours: Array, theirs: Array) -> float:
    """Returns max |ours - theirs| / max |theirs|, over finite values, or over `_SMALL` where those
    are smaller; infinity where one of them
    has another dtype, or NaN or an infinity where the other has not.
    """
    if ours.dtype != theirs.dtype:
        return float("inf")
    if not theirs.size:
        return 0.0
    if theirs.dtype.kind not in "fc":
        return float("inf") if (ours != theirs).any() else 0.0
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    a, b = ours[finite].astype(np.complex128), theirs[finite].astype(np.complex128)
    error = float(np.abs(a - b).max())
    return error / max(float(np.abs(b).max()), _SMALL) if np.isfinite(error) else float("inf")


def _largest(value: Array) -> float:
    if not value.size or value.dtype.kind not in "fiub":
        return 0.0
    return float(np.abs(value.astype(np.float64)).max())
