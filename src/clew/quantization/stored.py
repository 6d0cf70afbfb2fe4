"""Integers of weights that depend on calibration data, as a recipe keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.ir.types import bits, integer_limits
from clew.quantization.groups import Grouped
from clew.quantization.parameters import Parameters
from clew.quantization.scheme import Scheme
from clew.quantization.sites import Site
from clew.quantization.weight_only import group_of
from clew.support.archives import Archive
from clew.support.errors import InputError
from clew.support.packing import packed_halves, unpacked_halves
from clew.support.writing import write_arrays

Array = NDArray[Any]
_PARTS: Final = {"integers": np.uint8, "scales": np.float32, "zeros": np.int16}


@dataclass(frozen=True, eq=False)
class Stored:
    """The integers of a weight `[N, K]` as bytes, two of 4 bits to a byte, and the scales and zero
    points of its groups.
    """

    integers: Array
    scales: Array
    zeros: Array

    def grouped(self, site: Site, scheme: Scheme) -> Grouped:
        """Returns the weight of a site. Errors: I399 if it has another shape."""
        count, depth = site.channels, site.inputs
        size = group_of(scheme, depth)
        wanted = (count, -(-depth // size))
        width = -(-depth // 2) if bits(scheme.weights) == 4 else depth
        found = (self.integers.shape, self.scales.shape, self.zeros.shape)
        if found != ((count, width), wanted, wanted):
            raise InputError(
                "I399",
                f"the recipe has integers for another weight than one of {count} x {depth}",
                layer=site.name,
                hint="apply it to the model that it was made for",
            )
        whole = self.integers if width == depth else unpacked_halves(self.integers, depth)
        low, high = integer_limits(scheme.weights)
        whole = whole.astype(np.int16)
        whole = np.where(whole > high, whole + 2 * low, whole)
        return Grouped(whole, self.scales, self.zeros, size)


def stored_weight(p: Parameters) -> Stored:
    """Returns the weight of a quantized site."""
    whole = p.weight.astype(np.int16).astype(np.uint8)
    if bits(p.scheme.weights) == 4:
        whole = packed_halves(whole)
    return Stored(whole, p.scales.astype(np.float32), p.zeros.astype(np.int16))


def digest(stored: Stored, scheme: Scheme, numbers: Array | None) -> str:
    """Returns a digest of integers, their scheme, and their numbers for input channels."""
    made = hashlib.sha256(f"{scheme.weights} {scheme.group}".encode())
    for array in (stored.integers, stored.scales, stored.zeros, numbers):
        if array is not None:
            made.update(f"{array.dtype} {array.shape}".encode())
            made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def stored_to(path: Path, weights: Mapping[str, Stored]) -> None:
    """Writes weights to an `.npz` file. Raises `OSError`."""
    arrays = {
        f"{layer}.{part}": getattr(w, part) for layer, w in weights.items() for part in _PARTS
    }
    write_arrays(path, arrays)


def stored_from(path: Path, layers: Iterable[str]) -> dict[str, Stored]:
    """Returns the weights of layers in a file. Raises `OSError` and `ValueError`."""
    found: dict[str, Stored] = {}
    with Archive(path) as archive:
        for layer in layers:
            names = {part: f"{layer}.{part}" for part in _PARTS}
            missing = [name for name in names.values() if name not in archive]
            if missing:
                raise ValueError(f"there is no {missing[0]}")
            arrays = {part: archive[name] for part, name in names.items()}
            for part, dtype in _PARTS.items():
                if arrays[part].dtype != dtype:
                    raise ValueError(f"{names[part]} has the dtype {arrays[part].dtype}")
            found[layer] = Stored(**arrays)
    return found
