"""Free axes: models with free input sizes must give the same results as with concrete sizes.

Each variant of a model frees some axes of its inputs, in one of the notations of exporters. It is
compiled once and run with several sizes, and compared with ONNX Runtime on the same file.
"""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final
from zlib import crc32

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

import clew
import zoo
from clew.support.errors import ClewError
from fuzz.compare import is_float_array
from fuzz.dtypes import Array
from hostile.codes import OURS
from onnx_suite.cases import all_cases

MANNERS: Final = ("named", "shared", "missing", "-1", "0")
"""Notations of a free axis: its own name, one name for all axes of a size, no entry, and the
numbers that some exporters write.
"""
FAILURES: Final = ("refused", "mismatch", "uncoded")
_CHANCE: Final = ("Random", "Bernoulli", "Multinomial", "Dropout")
_RTOL, _ATOL = 2e-3, 1e-5
_MOST_BYTES: Final = 1 << 24

Axes = tuple[tuple[str, int], ...]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Free:
    """A model and what it is run with; a variant of it frees `axes` (input and position)."""

    name: str
    model: ModelProto = field(repr=False)
    feeds: Feeds = field(repr=False)
    axes: Axes = ()
    manner: str = ""

    @property
    def label(self) -> str:
        """A label that distinguishes it from other variants."""
        places = ",".join(f"{name}.{axis}" for name, axis in self.axes)
        return f"{self.name} {self.manner} {places}".strip()

    def file(self) -> ModelProto:
        """Returns the model with the axes free, and without its declarations of other sizes."""
        made = ModelProto()
        made.CopyFrom(self.model)
        if not self.axes:
            return made
        del made.graph.value_info[:]
        for value in made.graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
        for value in made.graph.input:
            for name, axis in self.axes:
                if name == value.name:
                    dim = value.type.tensor_type.shape.dim[axis]
                    _free(dim, self.manner, f"{name}_{axis}")
        return made

    def with_numbers(self, feeds: Feeds) -> ModelProto:
        """Returns the model with the sizes of these inputs."""
        made = self.file()
        for value in made.graph.input:
            if value.name in feeds and value.type.HasField("tensor_type"):
                dims = value.type.tensor_type.shape.dim
                for dim, size in zip(dims, feeds[value.name].shape, strict=True):
                    dim.dim_value = size
        return made

    def sized(self, rng: Random) -> Iterator[Feeds]:
        """Yields inputs of the sizes that the model had, then of others on the free axes: axes of
        one size keep one size.
        """
        yield self.feeds
        sizes = sorted({self.feeds[name].shape[axis] for name, axis in self.axes})
        for number in (1, 2, 0):
            other = {size: size + number if number else rng.randint(1, 4) for size in sizes}
            if number == 2:
                other = {size: 2 * size for size in sizes}
            feeds = dict(self.feeds)
            for name, axis in self.axes:
                array = feeds[name]
                size = other[self.feeds[name].shape[axis]]
                places = np.arange(size) % max(array.shape[axis], 1)
                feeds[name] = array.take(places, axis) if array.shape[axis] else array
            if sum(a.nbytes for a in feeds.values()) < _MOST_BYTES:
                yield feeds


def _free(dim: Any, manner: str, name: str) -> None:
    size = dim.dim_value
    dim.ClearField("value")
    if manner in ("named", "shared"):
        dim.dim_param = name.replace("/", "_") if manner == "named" else f"n{size}"
    elif manner != "missing":
        dim.dim_value = int(manner)


def _writable(case: Free, axes: Axes, manner: str) -> Axes:
    """Returns the axes that can be written so: a vector of 0 elements is one without any."""
    return tuple(a for a in axes if manner != "0" or np.ndim(case.feeds[a[0]]) > 1)


def models(patterns: Sequence[str]) -> Iterator[Free]:
    """Yields ONNX's backend cases and the quick models of the zoo whose names start so."""
    for name in zoo.names("quick"):
        if not patterns or name.startswith(tuple(patterns)):
            yield Free(name, onnx.load(zoo.path(name)), zoo.inputs(name))
    for case in all_cases().values():
        if case.is_expansion or case.light or not case.name.startswith(tuple(patterns or [""])):
            continue
        try:
            inputs, _ = next(iter(case.data_sets()))
        except StopIteration:
            continue
        if all(isinstance(v, np.ndarray) for v in inputs.values()):
            yield Free(case.name, case.model, inputs)


def _fixed_axes(case: Free) -> list[tuple[str, int]]:
    """Returns the axes of inputs whose sizes are numbers."""
    given = {t.name for t in case.model.graph.initializer}
    found = []
    for value in case.model.graph.input:
        if value.name in given or value.name not in case.feeds:
            continue
        if value.type.WhichOneof("value") != "tensor_type":
            continue
        dims = value.type.tensor_type.shape.dim
        found += [(value.name, n) for n, d in enumerate(dims) if d.HasField("dim_value")]
    return found


def all_free(case: Free) -> Free | None:
    """Returns the model with one name for all axes of a size of at least 2; None without any."""
    axes = tuple(a for a in _fixed_axes(case) if np.shape(case.feeds[a[0]])[a[1]] > 1)
    return Free(case.name, case.model, case.feeds, axes, "shared") if axes else None


def variants(case: Free, ways: int) -> Iterator[Free]:
    """Yields a model's variants: all, if it has few subsets of axes and notations, else a fixed
    selection that includes the one with all axes free.
    """
    free = _fixed_axes(case)
    if not free:
        return
    rng = Random(crc32(case.name.encode()))
    if len(MANNERS) * 2 ** len(free) <= ways:
        subsets = [
            tuple(axis for axis, taken in zip(free, bits, strict=True) if taken)
            for bits in product((False, True), repeat=len(free))
        ]
        chosen = [(axes, manner) for axes in subsets if axes for manner in MANNERS]
    else:
        chosen = [(tuple(free), rng.choice(MANNERS))]
        while len(chosen) < ways:
            some = tuple(a for a in free if rng.random() < 0.5) or (rng.choice(free),)
            chosen.append((some, rng.choice(MANNERS)))
    written = ((_writable(case, axes, manner), manner) for axes, manner in chosen)
    for axes, manner in dict.fromkeys(w for w in written if w[0]):
        yield Free(case.name, case.model, case.feeds, axes, manner)


def accepted(case: Free) -> bool:
    """Whether clew runs a model with its sizes as numbers, and its results are no chance."""
    if any(n.op_type.startswith(_CHANCE) for n in case.model.graph.node):
        return False
    try:
        clew.compile(case.file(), threads=1).run(case.feeds)
    except ClewError:
        return False
    return True


def checked(variant: Free) -> Iterator[tuple[str, str]]:
    """Yields for each set of sizes what came of it, and what is wrong: `ok`; `left` where ONNX
    Runtime does not run it, or clew does not with these sizes as numbers; `disputed` where clew
    differs from ONNX Runtime with numbers, too; or a failure: `refused`, `mismatch`, `uncoded`.
    """
    made = variant.file()
    session = _session(made)
    model: Any = None
    for number, feeds in enumerate(variant.sized(Random(crc32(variant.label.encode())))):
        wanted = _expected(session, variant, feeds, own=number == 0)
        if wanted is None:
            yield "left", ""
            continue
        shapes = ", ".join(f"{n} {list(np.shape(a))}" for n, a in feeds.items())
        try:
            model = model or clew.compile(made, threads=1)
            found = model.run(feeds)
        except ClewError as error:
            if number and _refused_with_numbers(variant, feeds):
                yield "left", ""
                continue
            kind = "uncoded" if error.code in OURS else "refused"
            yield kind, f"{error.code} {error.message} [{error.layer}] ({shapes})"
            continue
        except Exception as error:
            text = traceback.format_exception(error)[-1].strip()
            yield "uncoded", f"{text} ({shapes})"
            continue
        differs = _difference(list(found.values()), wanted)
        if differs and not _difference(list(found.values()), _with_numbers(variant, feeds)):
            yield "disputed", ""
            continue
        yield ("mismatch", f"{differs} ({shapes})") if differs else ("ok", "")


def _with_numbers(variant: Free, feeds: Feeds) -> list[Any]:
    """Returns clew's results with these concrete sizes.

    Errors: those of compiling and running it: a window that is larger than its image, for example.
    """
    return list(clew.compile(variant.with_numbers(feeds), threads=1).run(feeds).values())


def _refused_with_numbers(variant: Free, feeds: Feeds) -> bool:
    try:
        _with_numbers(variant, feeds)
    except ClewError:
        return True
    return False


def _session(made: ModelProto) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(
            made.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:
        return None


def _expected(session: Any, variant: Free, feeds: Feeds, own: bool) -> list[Any] | None:
    """Returns the expected results: ONNX Runtime's; if it does not run the variant at the model's
    own sizes, clew's with concrete sizes.
    """
    if session is not None:
        try:
            names = {i.name for i in session.get_inputs()}
            found: list[Any] = session.run(None, {n: a for n, a in feeds.items() if n in names})
            return found
        except Exception:
            if not own:
                return None
    if not own:
        return None
    static = Free(variant.name, variant.model, variant.feeds)
    return list(clew.compile(static.file(), threads=1).run(feeds).values())


def _difference(found: Sequence[Any], wanted: Sequence[Any]) -> str:
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            continue
        if a.dtype != b.dtype:  # what numpy has no dtype for comes as bytes
            continue
        if a.shape != b.shape:
            return f"result {number} is {list(a.shape)}, expected {list(b.shape)}"
        if is_float_array(a) and a.size:
            x, y = a.astype(np.float64), b.astype(np.float64)
            scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
            eps = float(ml_dtypes.finfo(a.dtype).eps)  # type: ignore[no-untyped-call]
            rtol = max(_RTOL, 2 * eps)
            if not np.allclose(x, y, rtol, _ATOL + rtol * scale, equal_nan=True):
                return f"result {number} is off by {np.nanmax(np.abs(x - y)):.3g} of {scale:.3g}"
        elif not np.array_equal(a, b):
            return f"result {number} differs"
    return ""


def save(variant: Free, what: str, folder: Path) -> Path:
    """Writes a failure's model, inputs and outcome; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    at = Path(tempfile.mkdtemp(prefix=f"{variant.name[:60]}-", dir=folder))
    onnx.save(variant.file(), at / "model.onnx")
    arrays: dict[str, Any] = dict(variant.feeds)
    np.savez(at / "inputs.npz", **arrays)
    (at / "what.txt").write_text(f"{variant.label}\n{what}\n")
    return at


def quiet() -> None:
    """Keeps engines from writing to the terminal."""
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(4)
