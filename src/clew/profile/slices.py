"""One run, of median times, as slices of time on tracks, for timelines.

A kernel may serve several layers, so there are tracks of *layers*, each cut into the *parts* of
kernels that serve it, and of *kernels*, each cut into *operators*. All show the same time, kernels
in order, without gaps; all iterations of a loop form one slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from clew.profile.rows import KernelProfile, LayerPart, OperatorProfile, ProfileRows

Track = Literal["layer", "part", "kernel", "operator"]


@dataclass(frozen=True)
class RunSlice:
    """A slice of a track. `layer` is a layer's name (empty for none), `kernel` and `operator` are
    the rows it shows, `part` is an operator's time for the layer; None if there is not exactly one.

    The last slice of the *layer* and *kernel* tracks is the time `outside` kernels.
    """

    track: Track
    start_ns: float
    ns: float
    layer: str = ""
    kernel: KernelProfile | None = None
    operator: OperatorProfile | None = None
    part: LayerPart | None = None
    outside: bool = False


def layer_slices(profile: ProfileRows) -> Iterator[RunSlice]:
    """Yields layers, with adjacent slices of a layer merged, each before the parts of kernels in
    it.

    A layer interrupted by others has several slices.
    """
    rows = (
        (kernel, operator, part)
        for kernel in profile.kernels
        for operator in kernel.operators
        for part in operator.parts
    )
    now = 0.0
    for layer, group in groupby(rows, key=lambda row: row[2].layer):
        inside = list(group)
        yield RunSlice("layer", now, sum(part.ns for _, _, part in inside), layer)
        for kernel, operator, part in inside:
            yield RunSlice("part", now, part.ns, layer, kernel, operator, part)
            now += part.ns
    yield RunSlice("layer", now, profile.outside_ns, outside=True)


def kernel_slices(profile: ProfileRows) -> Iterator[RunSlice]:
    """Yields kernels and host steps, each before its operators."""
    now = 0.0
    for kernel in profile.kernels:
        yield RunSlice("kernel", now, kernel.ns, kernel=kernel)
        for operator in kernel.operators:
            yield RunSlice("operator", now, operator.ns, kernel=kernel, operator=operator)
            now += operator.ns
    yield RunSlice("kernel", now, profile.outside_ns, outside=True)
