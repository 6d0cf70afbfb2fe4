"""A recipe: everything that was decided about a quantized model, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.ir.module import Module
from clew.ir.types import integer_limits
from clew.quantization.parameters import Parameters, parameters_in_groups, parameters_of
from clew.quantization.ranges import Grid
from clew.quantization.scheme import (
    DTYPES,
    DYNAMIC,
    FLOAT,
    Rule,
    Scheme,
    scheme_of_json,
    scheme_to_json,
)
from clew.quantization.sites import Site, point_name
from clew.quantization.stored import Stored, digest, stored_from, stored_to, stored_weight
from clew.quantization.sums import Addend, operand_named, scheme_of_sum, sums_of
from clew.quantization.weight_only import by_weights
from clew.support.errors import InputError
from clew.support.files import read_json_file, reason_of
from clew.support.shown import Shown, counted
from clew.support.writing import write_text

_FORMAT: Final = 1
_WITHOUT_RANGE: Final = (DYNAMIC, FLOAT)
_SUFFIX: Final = ".npz"


@dataclass(frozen=True)
class LayerRecipe:
    """The numbers of a quantized layer. `value` names the operand that calls bring, whose integers
    are `round(x / scale) + zero`; `correction` is added per output channel. The operand is divided
    by `numbers`, one per input channel, before, if there are any. `integers` is the digest of a
    weight whose integers depend on calibration data: they are in `Recipe.weights`.
    """

    layer: str
    value: str
    scale: float
    zero: int
    dtype: str
    correction: tuple[float, ...] = ()
    numbers: tuple[float, ...] = ()
    integers: str = ""

    def __post_init__(self) -> None:
        """Checks the numbers. Errors: I398."""
        if self.dtype in _WITHOUT_RANGE:
            steps: tuple[float, ...] = (1.0, *self.numbers)
            low, high = 0, 0
        else:
            steps = (self.scale, *self.numbers)
            low, high = integer_limits(self.dtype) if self.dtype in DTYPES else (0, -1)
        if (
            not low <= self.zero <= high
            or not np.isfinite([*steps, *self.correction]).all()
            or min(steps) <= 0
        ):
            raise InputError(
                "I398",
                "a scale, a zero point or a correction is out of range",
                layer=self.layer,
                hint=f"scales are positive, and dtypes are {', '.join((*DTYPES, *_WITHOUT_RANGE))}",
            )


@dataclass(frozen=True)
class SumRecipe:
    """The grid of an operand of a sum. `layer` is the addition, `value` names the operand, and
    `product` is the layer without which the sum stays in floats.
    """

    layer: str
    value: str
    product: str
    scale: float
    zero: int
    dtype: str

    def __post_init__(self) -> None:
        """Checks the numbers. Errors: I398."""
        low, high = integer_limits(self.dtype) if self.dtype in DTYPES else (0, -1)
        if not (low <= self.zero <= high and np.isfinite(self.scale) and self.scale > 0):
            raise InputError(
                "I398",
                "a scale or a zero point is out of range",
                layer=self.layer,
                hint=f"scales are positive, and dtypes of sums are {', '.join(DTYPES)}",
            )


@dataclass(frozen=True, repr=False)
class Recipe(Shown):
    """The decisions: the scheme, rules for some layers, layers that stay in floats with the
    reason, and the numbers of each quantized layer and of operands of sums. Weights are quantized
    again when the recipe is applied, except for those whose integers depend on calibration data,
    too, in `weights`. `errors` are those of the results of layers, if they were measured with just
    these layers quantized.
    """

    scheme: Scheme
    rules: tuple[Rule, ...] = ()
    layers: tuple[LayerRecipe, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    samples: int = 0
    errors: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Stored] = field(default_factory=dict, compare=False, repr=False)
    sums: tuple[SumRecipe, ...] = ()

    def _about(self) -> str:
        kept = f", {len(self.kept)} in floats" if self.kept else ""
        return f"{counted(len(self.layers), 'layer')} quantized{kept}"

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=1)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data."""
        return {
            "format": _FORMAT,
            "scheme": scheme_to_json(self.scheme),
            "rules": [r.to_json() for r in self.rules],
            "samples": self.samples,
            "kept": dict(self.kept),
            **({"errors": dict(self.errors)} if self.errors else {}),
            "layers": [
                {
                    "layer": n.layer,
                    "value": n.value,
                    "scale": n.scale,
                    "zero": n.zero,
                    "dtype": n.dtype,
                    **({"correction": list(n.correction)} if n.correction else {}),
                    **({"numbers": list(n.numbers)} if n.numbers else {}),
                    **({"integers": n.integers} if n.integers else {}),
                }
                for n in self.layers
            ],
            **({"sums": [asdict(n) for n in self.sums]} if self.sums else {}),
        }

    @staticmethod
    def of_json(data: Any, weights: Mapping[str, Stored] | None = None) -> Recipe:
        """Returns the recipe of plain data, which lack the integers of weights.

        Errors: I398 for data that are not a recipe; I390 and I391 for its scheme and rules.
        """
        try:
            if data["format"] != _FORMAT:
                raise InputError(
                    "I398", f"the recipe has format {data['format']}; this clew reads {_FORMAT}"
                )
            return Recipe(
                scheme_of_json(data["scheme"]),
                tuple(Rule.of_json(r) for r in data.get("rules", ())),
                tuple(
                    LayerRecipe(
                        str(n["layer"]),
                        str(n["value"]),
                        float(n["scale"]),
                        int(n["zero"]),
                        str(n["dtype"]),
                        tuple(map(float, n.get("correction", ()))),
                        tuple(map(float, n.get("numbers", ()))),
                        str(n.get("integers", "")),
                    )
                    for n in data.get("layers", ())
                ),
                {str(k): str(v) for k, v in data.get("kept", {}).items()},
                int(data.get("samples", 0)),
                {str(k): float(v) for k, v in data.get("errors", {}).items()},
                weights or {},
                tuple(
                    SumRecipe(
                        str(n["layer"]),
                        str(n["value"]),
                        str(n["product"]),
                        float(n["scale"]),
                        int(n["zero"]),
                        str(n["dtype"]),
                    )
                    for n in data.get("sums", ())
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                "I398",
                f"the data are not a recipe: {type(error).__name__}: {error}",
                hint="Recipe.save writes one",
            ) from error

    def save(self, path: str | Path) -> None:
        """Writes the recipe as JSON, and integers that depend on calibration data to an `.npz` file
        of the same name, two of 4 bits to a byte. Errors: I398 for the suffix `.npz` itself. Raises
        `OSError`.
        """
        path = Path(path)
        if path.suffix == _SUFFIX:
            raise InputError(
                "I398", f"a recipe cannot be called {path.name}", hint="it is JSON: recipe.json"
            )
        if self.weights:
            stored_to(path.with_suffix(_SUFFIX), self.weights)
        write_text(path, str(self) + "\n")

    @staticmethod
    def load(path: str | Path) -> Recipe:
        """Returns the recipe in a file. Errors: those of `of_json`."""
        path = Path(path)
        try:
            data = read_json_file(path)
        except (OSError, ValueError) as error:
            raise InputError("I398", f"cannot read the recipe {path}: {error}") from error
        found = Recipe.of_json(data)
        layers = [n.layer for n in found.layers if n.integers]
        if not layers:
            return found
        beside = path.with_suffix(_SUFFIX)
        try:
            return replace(found, weights=stored_from(beside, layers))
        except (OSError, ValueError) as error:
            raise InputError(
                "I398",
                f"cannot read the integers of the recipe {path}: {reason_of(error)}",
                hint=f"such a recipe consists of two files, {path.name} and {beside.name}",
            ) from error


def recorded(parameters: Sequence[Parameters]) -> tuple[LayerRecipe, ...]:
    """Returns the numbers of quantized sites as data."""
    found = []
    for p in parameters:
        correction = () if p.correction is None else tuple(map(float, p.correction))
        value = point_name(p.site.data)
        grid = p.grid or Grid(0.0, 0, p.scheme.activations)
        numbers = () if p.numbers is None else tuple(map(float, p.numbers))
        found.append(
            LayerRecipe(
                p.site.name,
                value,
                grid.scale,
                grid.zero,
                grid.dtype,
                correction,
                numbers,
                digest(stored_weight(p), p.scheme, p.numbers) if p.decided else "",
            )
        )
    return tuple(found)


def recorded_sums(addends: Sequence[Addend]) -> tuple[SumRecipe, ...]:
    """Returns the grids of operands of sums as data."""
    found = []
    for a in addends:
        assert a.grid is not None
        names = (a.sum.name, point_name(a.value), a.product.name)
        found.append(SumRecipe(*names, a.grid.scale, a.grid.zero, a.grid.dtype))
    return tuple(found)


def rounded_weights(parameters: Sequence[Parameters]) -> dict[str, Stored]:
    """Returns the weights whose integers depend on calibration data, by layer."""
    return {p.site.name: stored_weight(p) for p in parameters if p.decided}


def replayed(
    recipe: Recipe, sites: Sequence[Site], schemes: Mapping[str, Scheme | None]
) -> list[Parameters]:
    """Returns the parameters of sites by a recipe. Layers that `schemes` leaves in floats are left
    out.

    Errors: I399 for a layer that the model lacks, or that the recipe has no numbers for.
    """
    numbers = {n.layer: n for n in recipe.layers}
    known = {s.name for s in sites}
    for name in numbers:
        if name not in known:
            raise InputError(
                "I399",
                f"the recipe quantizes {name!r}, which the model lacks",
                hint="apply it to the model that it was made for",
            )
    found = []
    for site in sites:
        scheme = schemes[site.name]
        if scheme is None or site.name in recipe.kept:
            continue
        if site.name not in numbers:
            raise InputError(
                "I399",
                "the recipe has no numbers for the layer",
                layer=site.name,
                hint="give calibration data, or keep the layer in floats",
            )
        n = numbers[site.name]
        if n.dtype != scheme.activations:
            raise InputError(
                "I399",
                f"the recipe has numbers for {n.dtype}, and its rules ask for {scheme.activations}",
                layer=site.name,
                hint="give calibration data as well",
            )
        for what, given, count in (
            ("corrects", n.correction, site.channels),
            ("divides", n.numbers, site.inputs),
        ):
            if given and len(given) != count:
                raise InputError(
                    "I399", f"the recipe {what} {len(given)} channels of {count}", layer=site.name
                )
        numbers32 = np.asarray(n.numbers, np.float32) if n.numbers else None
        if scheme.is_weight_only:
            p = _weight(site, scheme, n, numbers32, recipe.weights)
        else:
            grid = None if scheme.is_dynamic else Grid(n.scale, n.zero, n.dtype)
            p = parameters_of(site, scheme, grid, numbers32)
        if n.correction:
            p = p.corrected(np.asarray(n.correction, np.float32))
        found.append(p)
    return found


def replayed_sums(
    recipe: Recipe,
    module: Module,
    sites: Sequence[Site],
    schemes: Mapping[str, Scheme | None],
    rules: Sequence[Rule],
    wanted: Sequence[Addend],
) -> list[Addend]:
    """Returns the operands of sums that a recipe rounds, less the sums that rules leave in floats.
    `wanted` are those that the scheme and the rules ask for.

    Errors: I399 for a sum, an operand or a product that the model lacks, or for a sum that the
    recipe has no numbers for.
    """
    have = {n.layer for n in recipe.sums}
    for a in wanted:
        if a.sum.name not in have and a.product.name not in recipe.kept:
            raise InputError(
                "I399",
                "the recipe has no numbers for the sum",
                layer=a.sum.name,
                hint="give calibration data, or keep the addition in floats",
            )
    known = {s.name: s for s in sums_of(module, sites)} if recipe.sums else {}
    products = {s.name: s for s in sites}
    found = []
    for n in recipe.sums:
        each, product = known.get(n.layer), products.get(n.product)
        value = None if each is None else operand_named(each, n.value)
        if each is None or product is None or value is None:
            raise InputError(
                "I399",
                f"the recipe rounds {n.value!r} for the sum {n.layer!r} with {n.product!r}, which "
                "the model lacks",
                hint="apply it to the model that it was made for",
            )
        scheme = scheme_of_sum(module, sites, each, schemes[product.name], rules)
        if scheme is None or not scheme.rounds_sums:
            continue
        in_kernel = each.adds and any(a.id == product.result.id for a in each.call.args)
        grid = Grid(n.scale, n.zero, n.dtype)
        found.append(Addend(each, value, product, scheme, in_kernel, grid))
    return found


def _weight(
    site: Site,
    scheme: Scheme,
    recorded: LayerRecipe,
    numbers: Any,
    weights: Mapping[str, Stored],
) -> Parameters:
    """Returns the parameters of a site whose operand stays in floats, rounded to nearest unless the
    recipe has the integers. Errors: I399.
    """
    if not recorded.integers:
        if scheme.rounding != "nearest":
            raise InputError(
                "I399",
                f"the recipe has no integers of the layer, and {scheme.rounding} needs "
                "calibration data",
                layer=site.name,
                hint='give them, or add a rule with {"rounding": "nearest"}',
            )
        return by_weights(site, scheme, numbers)
    stored = weights.get(site.name)
    if stored is None:
        raise InputError(
            "I399",
            "the integers of the layer's weight are not with the recipe",
            layer=site.name,
            hint="load the file that Recipe.save wrote, which has them beside it; without "
            '"integers", the weight is rounded to nearest',
        )
    if digest(stored, scheme, numbers) != recorded.integers:
        raise InputError(
            "I399",
            "the recipe has integers of the layer's weight for another scheme or other numbers",
            layer=site.name,
            hint='without "integers", the weight is rounded to nearest; or give calibration data',
        )
    return parameters_in_groups(site, scheme, stored.grouped(site, scheme), numbers, decided=True)
