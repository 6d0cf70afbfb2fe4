"""Sentences about the layers of a quantized model, for its traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.ir.expr import Expr, Var
from clew.ir.types import bits
from clew.quantization.parameters import Parameters
from clew.quantization.ranges import Grid
from clew.quantization.recipe import Recipe
from clew.quantization.scheme import Scheme
from clew.quantization.sites import Site, point_name
from clew.quantization.sums import Addend
from clew.support.shown import counted
from clew.trace.notes import Note


def quantization_notes(
    sites: Sequence[Site],
    parameters: Sequence[Parameters],
    addends: Sequence[Addend],
    recipe: Recipe,
) -> list[Note]:
    """Returns the notes about quantized layers and sums, about layers that stay in floats, and
    about those whose results are rounded.
    """
    known = {p.site.name: p for p in parameters}
    found = []
    for site in sites:
        error = recipe.errors.get(site.name)
        layer = next(iter(site.call.span.layers), site.name)
        which = "" if layer == site.name else f"{site.name}: "
        p = known.get(site.name)
        if p is not None:
            found.append(Note(layer, f"{which}quantized: {_numbers(p, recipe.samples)}", error))
        elif site.name in recipe.kept:
            why = recipe.kept[site.name]
            found.append(Note(layer, f"{which}kept in floats: {why}", error))
    for a in addends:
        layer = next(iter(a.sum.call.span.layers), a.sum.name)
        found.append(Note(layer, _of_sum(a, recipe.samples), recipe.errors.get(a.sum.name)))
    return [*found, *_of_values(parameters, addends)]


def _of_sum(a: Addend, samples: int) -> str:
    """Returns which operand of a sum is rounded, and to which grid."""
    assert a.grid is not None
    text = (
        f"its operand {point_name(a.value)} is {_grid_text(a.grid)}, {_origin(a.scheme, samples)}"
    )
    if a.in_kernel:
        text += f"; it is added to the sums of {a.product.name}"
    return text


def _numbers(p: Parameters, samples: int) -> str:
    """Returns the numbers of a quantized layer, and where they come from."""
    scheme = p.scheme
    parts = [f"its operand is {_grid(p)}"]
    if p.grid is not None:
        parts[0] += f", {_origin(scheme, samples)}"
    if p.numbers is not None:
        parts.append("channels of the operand are divided by a number each, which the weight has")
    parts.append(_weight(p, samples))
    if p.correction is not None:
        parts.append("its mean error is subtracted")
    return "; ".join(parts)


def _weight(p: Parameters, samples: int) -> str:
    """Returns the form of a weight, and how its integers were chosen."""
    scheme = p.scheme
    weight = f"its weight is {scheme.weights}"
    if scheme.weight_bits < min(bits(scheme.weights), 8):
        weight += f" of which {scheme.weight_bits} bits are used"
    per = f"a scale for each of {counted(len(p.scales), 'channel')}"
    if p.scales.ndim > 1 and p.scales.shape[1] > 1:
        per = f"a scale for each {counted(p.block, 'input')} of {counted(len(p.scales), 'channel')}"
    one = f"scale {float(p.scales.reshape(-1)[0]):.4g}"
    how = f"range by {scheme.weight_range}"
    if scheme.rounding != "nearest":
        how += f", rounded by {scheme.rounding} from {counted(samples, 'sample')}"
    return f"{weight}, {per if p.per_channel else one} ({how})"


def _grid(p: Parameters) -> str:
    if p.scheme.is_weight_only:
        return "left in floats"
    if p.grid is None:
        return "u8, with a scale and a zero point that each call finds"
    return _grid_text(p.grid)


def _grid_text(grid: Grid) -> str:
    return (
        f"{grid.dtype} with scale {grid.scale:.4g}, zero point {grid.zero}: "
        f"{grid.low:.3g} to {grid.high:.3g}"
    )


def _origin(scheme: Scheme, samples: int) -> str:
    method = f"range by {scheme.range}"
    if scheme.range == "percentile":
        method += f" {scheme.percentile:g}"
    return f"from {counted(samples, 'sample')} ({method})" if samples else f"({method})"


def _of_values(parameters: Sequence[Parameters], addends: Sequence[Addend]) -> Iterator[Note]:
    """Yields notes about the layers whose results are rounded, and for whom."""
    readers: dict[tuple[int, str], list[str]] = {}
    values: dict[int, Expr] = {}
    for p in parameters:
        if p.scheme.is_weight_only:
            continue
        values[p.site.data.id] = p.site.data
        readers.setdefault((p.site.data.id, _grid(p)), []).append(p.site.name)
    for a in addends:
        assert a.grid is not None
        values[a.value.id] = a.value
        readers.setdefault((a.value.id, _grid_text(a.grid)), []).append(a.sum.name)
    for (value, grid), names in readers.items():
        layer = _layer_of(values[value])
        if layer:
            yield Note(layer, f"its result is rounded for {', '.join(names)}: {grid}")


def _layer_of(value: Expr) -> str:
    """Returns the layer whose result a value is; "" for inputs."""
    if isinstance(value, Var):
        return ""
    marked = [s.layer for s in value.span.sources if s.output is not None]
    return marked[-1] if marked else next(iter(value.span.layers), "")
