"""A recipe: everything that was decided about a quantized model, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.ir.types import integer_limits
from clew.quantization.parameters import Parameters, parameters_of
from clew.quantization.ranges import Grid
from clew.quantization.scheme import DTYPES, DYNAMIC, Rule, Scheme, scheme_of_json, scheme_to_json
from clew.quantization.sites import Site, point_name
from clew.support.errors import InputError
from clew.support.files import read_bytes
from clew.support.shown import Shown, counted
from clew.support.writing import write_text

_FORMAT: Final = 1


@dataclass(frozen=True)
class LayerRecipe:
    """The numbers of a quantized layer. `value` names the operand that calls bring, whose integers
    are `round(x / scale) + zero`; `correction` is added per output channel. The operand is divided
    by `numbers`, one per input channel, before, if there are any.
    """

    layer: str
    value: str
    scale: float
    zero: int
    dtype: str
    correction: tuple[float, ...] = ()
    numbers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Checks the numbers. Errors: I398."""
        if self.dtype == DYNAMIC:
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
                hint=f"scales are positive, and dtypes are {', '.join(DTYPES)} or {DYNAMIC}",
            )


@dataclass(frozen=True, repr=False)
class Recipe(Shown):
    """What was decided: the scheme, rules for some layers, layers that stay in floats with the
    reason, and the numbers of each quantized layer. Weights are quantized again when the recipe is
    applied: they depend on nothing else. `errors` are those of the results of layers, if they were
    measured with just these layers quantized.
    """

    scheme: Scheme
    rules: tuple[Rule, ...] = ()
    layers: tuple[LayerRecipe, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    samples: int = 0
    errors: Mapping[str, float] = field(default_factory=dict)

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
                }
                for n in self.layers
            ],
        }

    @staticmethod
    def of_json(data: Any) -> Recipe:
        """Returns the recipe of plain data.

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
                    )
                    for n in data.get("layers", ())
                ),
                {str(k): str(v) for k, v in data.get("kept", {}).items()},
                int(data.get("samples", 0)),
                {str(k): float(v) for k, v in data.get("errors", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "I398",
                f"the data are not a recipe: {type(error).__name__}: {error}",
                hint="Recipe.save writes one",
            ) from error

    def save(self, path: str | Path) -> None:
        """Writes the recipe as JSON. Raises `OSError`."""
        write_text(path, str(self) + "\n")

    @staticmethod
    def load(path: str | Path) -> Recipe:
        """Returns the recipe in a file. Errors: those of `of_json`."""
        try:
            data = json.loads(read_bytes(Path(path)))
        except (OSError, ValueError) as error:
            raise InputError("I398", f"cannot read the recipe {path}: {error}") from error
        return Recipe.of_json(data)


def recorded(parameters: Sequence[Parameters]) -> tuple[LayerRecipe, ...]:
    """Returns the numbers of quantized sites as data."""
    found = []
    for p in parameters:
        correction = () if p.correction is None else tuple(map(float, p.correction))
        value = point_name(p.site.data)
        grid = p.grid or Grid(0.0, 0, DYNAMIC)
        numbers = () if p.numbers is None else tuple(map(float, p.numbers))
        layer = p.site.name
        found.append(
            LayerRecipe(layer, value, grid.scale, grid.zero, grid.dtype, correction, numbers)
        )
    return tuple(found)


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
        grid = None if scheme.is_dynamic else Grid(n.scale, n.zero, n.dtype)
        p = parameters_of(site, scheme, grid, numbers32)
        if n.correction:
            p = p.corrected(np.asarray(n.correction, np.float32))
        found.append(p)
    return found
