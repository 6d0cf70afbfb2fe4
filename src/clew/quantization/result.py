"""The result of `clew.quantize`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table

from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.frontends.onnx.file.qdq import FORMS, Product, check_form, write_quantized
from clew.ir.module import Module
from clew.ir.textfile import save_module
from clew.ir.types import to_numpy
from clew.quantization.apply import conversion_names, quantized_module
from clew.quantization.parameters import Parameters
from clew.quantization.recipe import Recipe
from clew.quantization.search import FloatSet, Step
from clew.quantization.times import LayerTime, layer_times
from clew.support.errors import InputError
from clew.support.shown import Shown, counted
from clew.support.tables import as_text, table

_COLUMNS: Final = 140


@dataclass(frozen=True)
class LayerRow:
    """A layer with a product, and how it was quantized.

    `low` and `high` are the extremes of the operand that calls bring, over all samples; `clipped`
    is the share of its elements outside of the range that integers stand for. `sqnr_db` is the
    ratio of the result's mean square to that of its error on exact operands, in decibels. `alone`
    is the relative error of the model's outputs if only this layer is quantized. `kept` is the
    reason why the layer stays in floats, or "". Numbers that were not measured are None.
    """

    layer: str
    op: str
    value: str
    kept: str = ""
    dtypes: str = ""
    low: float | None = None
    high: float | None = None
    scale: float | None = None
    zero: int | None = None
    clipped: float | None = None
    sqnr_db: float | None = None
    alone: float | None = None


@dataclass(frozen=True, repr=False)
class Quantized(Shown):
    """A quantized model.

    `original` is the model in floats, with batch norms folded; `module` is the quantized one, which
    `clew.compile`, `clew.edit` and everything else take. `layers` has a row for each layer that
    could be quantized; `error` is the relative error of the outputs on the calibration data, if
    there are any. `floats` has the smallest set of layers in floats, if a bound was given, and
    `frontier` the figures on the way from all layers quantized to none. `sample` is the first call
    of the calibration data.
    """

    original: Module
    recipe: Recipe
    layers: tuple[LayerRow, ...]
    parameters: Sequence[Parameters] = field(repr=False)
    candidates: Sequence[Parameters] = field(repr=False)
    norms: Mapping[str, str] = field(default_factory=dict)
    error: float | None = None
    floats: FloatSet | None = None
    source: Any = None
    frontier: tuple[Step, ...] = ()
    sample: Any = None

    def _about(self) -> str:
        error = "" if self.error is None else f", error {self.error:.2g}"
        return f"{counted(len(self.parameters), 'layer')} of {len(self.layers)} quantized{error}"

    @property
    def module(self) -> Module:
        """The quantized model."""
        return quantized_module(self.original, self.parameters)

    def compile(self, **options: Any) -> CompiledModel:
        """Returns the quantized model compiled; `options` are those of `clew.compile`."""
        return compile(self.module, **options)

    def __str__(self) -> str:
        return "\n".join([as_text(self.table(), _COLUMNS), *self.notes()])

    def table(self) -> Table:
        """Returns the layers as a table for a terminal."""
        numbers = ("range", "clipped", "SQNR", "alone")
        made = table("layer", "operator", "operand", *numbers, "in floats because", right=numbers)
        for row in self.layers:
            made.add_row(
                row.layer,
                row.op,
                f"{row.value}: {row.dtypes}" if row.dtypes else row.value,
                "" if row.low is None or row.high is None else f"{row.low:.3g} to {row.high:.3g}",
                "" if row.clipped is None else f"{100 * row.clipped:.2g} %",
                "" if row.sqnr_db is None else f"{row.sqnr_db:.1f} dB",
                "" if row.alone is None else f"{row.alone:.1e}",
                row.kept,
            )
        return made

    def notes(self) -> list[str]:
        """Returns the error, and the set in floats with its proof, as lines."""
        return [f"{self._about()}", *(self.floats.lines() if self.floats else ())]

    def times(
        self,
        inputs: Any = None,
        *,
        on_progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> tuple[LayerTime, ...]:
        """Returns what each layer costs in floats and in integers, in the kernels where it lives.

        Both models are compiled with `options` (those of `clew.compile`) and profiled on `inputs`,
        by default the first of the calibration data. All layers are quantized for it, also those
        that a bound keeps in floats, but not those that rules keep.
        """
        say = on_progress or (lambda text: None)
        every = quantized_module(self.original, self.candidates)
        profiles = []
        for what, module in (("floats", self.original), ("integers", every)):
            say(f"timing the model in {what}")
            model = compile(module, **options)
            given = self.sample if inputs is None else inputs
            feed = model.drawn() if given is None else model.checked((), model.named_inputs(given))
            profiles.append(model.profile(*feed, sample=False))
        conversions: dict[str, list[str]] = {}
        for name, p in conversion_names(self.candidates):
            if name:
                conversions.setdefault(name, []).append(p.site.name)
        return layer_times([p.site for p in self.candidates], conversions, *profiles)

    def to_json(self) -> dict[str, Any]:
        """Returns the layers, the error, the set in floats and the recipe as plain data."""
        return {
            "error": self.error,
            "floats": None if self.floats is None else asdict(self.floats),
            "frontier": [asdict(step) for step in self.frontier],
            "layers": [asdict(row) for row in self.layers],
            "recipe": self.recipe.to_json(),
        }

    def save(self, path: str | Path, *, source: Any = None, form: str = FORMS[0]) -> None:
        """Writes the quantized model as an ONNX file with QuantizeLinear and DequantizeLinear, or,
        if the name ends in `.txt`, as the text of the module with its constants in an `.npz` file
        of the same name. `clew.load` reads both.

        The ONNX file is the one that was quantized, with nodes added, so `source` must name it if
        the model was given as a module. With the `form` `matmulnbits`, products with weights in
        groups are ONNX Runtime's MatMulNBits instead. Errors: I333, I390, I396, I397, I404. Raises
        `OSError`.
        """
        path = Path(path)
        check_form(form)
        if path.suffix.lower() == ".txt":
            save_module(self.module, path)
            return
        if path.suffix.lower() != ".onnx":
            raise InputError(
                "I404",
                f"{str(path)!r} has an unsupported suffix",
                hint=".onnx for an ONNX file, .txt for clew text",
            )
        given = self.source if source is None else source
        if given is None:
            raise InputError(
                "I396",
                "the model was given as a module, and an ONNX file is written from its file",
                hint="q.save(path, source='model.onnx'), or quantize the file",
            )
        notes = {"clew.recipe": json.dumps(self.recipe.to_json())}
        write_quantized(given, path, [self._product(p) for p in self.parameters], notes, form)

    def _product(self, p: Parameters) -> Product:
        site = p.site
        layers = site.call.span.layers
        norm = next((n for n, product in self.norms.items() if product == site.name), "")
        adds = ""
        if site.bias is not None and not norm and not set(layers) & set(site.bias.span.layers):
            adds = next(iter(site.bias.span.layers), "")
        integers = p.bias_integers
        scales = p.sum_scales.reshape(-1 if p.per_channel else ())
        return Product(
            layers[0],
            None if p.grid is None else p.grid.scale,
            p.steps,
            site.call.args[0].tensor.rank + site.channel_axis,
            np.zeros((), np.uint8)
            if p.grid is None
            else np.array(p.grid.zero, to_numpy(p.grid.dtype)),
            p.weight,
            site.channel,
            p.scales if p.per_channel else p.scales.reshape(()),
            p.zeros if p.per_channel else p.zeros.reshape(()),
            p.float_bias if integers is None else integers,
            None if integers is None else scales,
            site.bias is not None and not adds,
            adds,
            norm,
            p.scheme.is_weight_only,
            p.reciprocals,
            p.block,
            p.scheme.is_symmetric,
            site.data.tensor.rank,
        )
