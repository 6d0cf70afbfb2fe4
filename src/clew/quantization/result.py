"""The result of `clew.quantize`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.exporters.files import SAVES
from clew.frontends.format import Format
from clew.frontends.formats import all_formats, by_suffix, format_of, recognized_in_memory
from clew.frontends.notes import KEY as NOTES_KEY
from clew.frontends.quantized import FORMS, Operand, Product, check_form
from clew.ir.module import Module
from clew.ir.notes import notes_of, with_notes
from clew.ir.textfile import save_module
from clew.ir.types import to_numpy
from clew.profile.report import Profile
from clew.quantization.apply import conversions, quantized_module
from clew.quantization.notes import quantization_notes
from clew.quantization.parameters import Parameters
from clew.quantization.picture import frontier_svg
from clew.quantization.recipe import Recipe
from clew.quantization.search import FloatSet, Step
from clew.quantization.sites import sites_of
from clew.quantization.sums import Addend, active
from clew.quantization.table import LayerRow, LayersTable, legend
from clew.quantization.times import LayerTime, Timing, layer_times, why_no_bf16
from clew.support.errors import Hint, InputError
from clew.support.shown import Shown, counted
from clew.support.tables import as_text
from clew.trace.notes import Note

_COLUMNS: Final = 100


@dataclass(frozen=True, repr=False)
class Quantized(Shown):
    """A quantized model.

    `original` is the model in floats, with batch norms folded; `module` is the quantized one, which
    `clew.compile`, `clew.edit` and everything else take. `layers` has a row for each layer that
    could be quantized; `error` is the relative error of the outputs on the calibration data, if
    there are any. `floats` has the smallest set of layers in floats, if a bound was given, and
    `frontier` the figures on the way from all layers quantized to none. `sample` is the first call
    of the calibration data. `timing` has the times of layers after `timed`. `sums` has a row for
    each of the `addends`, the operands of sums that are rounded. `divergence` is that of the
    logits, in nats, if it was measured.
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
    timing: Timing | None = None
    sums: tuple[LayerRow, ...] = ()
    addends: Sequence[Addend] = field(default=(), repr=False)
    divergence: float | None = None

    def _about(self) -> str:
        error = "" if self.error is None else f", error {self.error:.2g}"
        if self.divergence is not None:
            error += f", KL {self.divergence:.2g}"
        return f"{counted(len(self.parameters), 'layer')} of {len(self.layers)} quantized{error}"

    @property
    def module(self) -> Module:
        """The quantized model, with notes about its layers for stories."""
        made = quantized_module(self.original, self.parameters, self.addends)
        return with_notes(made, self._notes())

    def _notes(self) -> list[Note]:
        sites, addends = sites_of(self.original), active(self.addends, self.parameters)
        own = quantization_notes(sites, self.parameters, addends, self.recipe)
        return [*notes_of(self.original), *own]

    def compile(self, **options: Any) -> CompiledModel:
        """Returns the quantized model compiled; `options` are those of `clew.compile`."""
        return compile(self.module, **options)

    def __str__(self) -> str:
        return "\n".join([as_text(self.table(), _COLUMNS), *self.notes()])

    def table(self) -> LayersTable:
        """Returns the layers as a table for a terminal."""
        return LayersTable([*self.layers, *self.sums], self.timing)

    def notes(self) -> list[str]:
        """Returns the error, why layers are in floats, the set in floats with its proof, and times,
        as lines.
        """
        floats = self.floats.lines() if self.floats else ()
        times = self.timing.lines() if self.timing else ()
        return [*legend(self.layers), self._about(), *floats, *times]

    def times(
        self,
        inputs: Any = None,
        *,
        on_progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> tuple[LayerTime, ...]:
        """Returns the cost of each layer in floats and in integers, in the kernels that compute it,
        as `timed` measures it.
        """
        timing = self.timed(inputs, on_progress=on_progress, **options).timing
        assert timing is not None
        return timing.layers

    def timed(
        self,
        inputs: Any = None,
        *,
        on_progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Quantized:
        """Returns the result with the cost of each layer in f32, in bf16 and in integers, in the
        kernels that compute it. Its table has the times, too.

        The models are compiled with `options` (those of `clew.compile`) and profiled on `inputs`,
        by default the first of the calibration data. All layers are quantized for it, also those
        that a bound keeps in floats, but not those that rules keep. bf16 is left out on targets
        without instructions for its products.
        """
        say = on_progress or (lambda text: None)
        how = CompileOptions.of(options)
        every = quantized_module(self.original, self.candidates, self.addends)
        profiles: list[Profile] = []

        def profile(what: str, module: Module, **more: Any) -> CompiledModel:
            say(f"timing the model in {what}")
            model = compile(module, **how.changed(**more))
            given = self.sample if inputs is None else inputs
            feed = model.drawn() if given is None else model.checked((), model.named_inputs(given))
            profiles.append(model.profile(*feed, sample=False))
            return model

        model = profile("floats", self.original)
        profile("integers", every)
        without = why_no_bf16(model.options.target)
        if not without:
            profile("bf16", self.original, precision="bf16")
        needed: dict[str, list[str]] = {}
        for c in conversions(self.original, self.candidates, self.addends):
            needed.setdefault(c.name, []).extend(s.name for s in c.products)
        layers = layer_times([p.site for p in self.candidates], needed, *profiles)
        floats, integers, *bf16 = (p.wall.ns / 1e3 for p in profiles)
        timing = Timing(layers, floats, integers, bf16[0] if bf16 else None, without)
        return replace(self, timing=timing)

    def frontier_svg(self) -> str:
        """Returns the frontier as a picture, an SVG document: error against time after `timed`,
        else against the number of layers in floats.

        Errors: I406 without a frontier.
        """
        if not self.frontier:
            raise InputError(
                "I406",
                "there is no frontier of errors",
                hint=Hint(
                    "sensitivities=True or a bound measures it",
                    cli="--sensitivities or --max-error measures it",
                ),
            )
        errors = self.floats is None or self.floats.figure == self.error
        name = "relative error of the outputs" if errors else "loss of the metric"
        return frontier_svg(self.frontier, self.floats, self.timing, name)

    def to_json(self) -> dict[str, Any]:
        """Returns the layers, the error, the set in floats, the times if they were measured, and
        the recipe as plain data.
        """
        return {
            "error": self.error,
            "divergence": self.divergence,
            "floats": None if self.floats is None else asdict(self.floats),
            "frontier": [asdict(step) for step in self.frontier],
            "layers": [asdict(row) for row in self.layers],
            "sums": [asdict(row) for row in self.sums],
            "times": None if self.timing is None else asdict(self.timing),
            "recipe": self.recipe.to_json(),
        }

    def save(self, path: str | Path, *, source: Any = None, form: str = FORMS[0]) -> None:
        """Writes the quantized model as an ONNX file with QuantizeLinear and DequantizeLinear, or,
        if the name ends in `.txt`, as the text of the module with its constants in an `.npz` file
        of the same name. `clew.load` reads both.

        The ONNX file is the one that was quantized, with nodes added, so `source` must name it if
        the model was given as a module. With the `form` `matmulnbits`, products with weights in
        groups are ONNX Runtime's MatMulNBits instead. For a source of another format, the operators
        of the quantized model are written. Errors: I333, I390, I396, I397, I404, U070. Raises
        `OSError`.
        """
        path = Path(path)
        check_form(form)
        if path.suffix.lower() == ".txt":
            save_module(self.module, path)
            return
        wanted = by_suffix(path)
        if wanted is None or not wanted.quantizes:
            able = "".join(f"{f.suffix} for {f.file}, " for f in all_formats() if f.quantizes)
            raise InputError(
                "I404",
                f"{str(path)!r} has an unsupported suffix",
                hint=f"{able}.txt for clew text",
            )
        given = self.source if source is None else source
        if given is None:
            raise InputError(
                "I396",
                f"the model was given as a module, and {wanted.file} is written from its file",
                hint=f"q.save(path, source='model{wanted.suffix}'), or quantize the file",
            )
        notes = {
            "clew.recipe": json.dumps(self.recipe.to_json()),
            NOTES_KEY: json.dumps(self._notes()),
        }
        if not _is_of(wanted, given):
            if form != FORMS[0]:
                raise InputError(
                    "I396",
                    f"the form {form} needs {wanted.file} as the source",
                    hint=f"save with form={FORMS[0]!r}",
                )
            SAVES[wanted.name](self.module, path, notes)
            return
        products = [self._product(p) for p in self.parameters]
        wanted.write_quantized(given, path, products, self._operands(), notes, form)

    def _operands(self) -> list[Operand]:
        """Returns the conversions of operands of sums and pools."""
        products = {p.site.call.id for p in self.parameters}
        found = []
        for c in conversions(self.original, self.parameters, self.addends):
            if c.reader.id in products or c.grid is None:
                continue
            layer = c.reader.span.layers[0]
            place = [a.id for a in c.reader.args].index(c.value.id)
            zero = np.array(c.grid.zero, to_numpy(c.grid.dtype))
            found.append(Operand(layer, place, c.grid.scale, zero))
        return found

    def _product(self, p: Parameters) -> Product:
        site = p.site
        layers = site.call.span.layers
        norm = next((n for n, product in self.norms.items() if product == site.name), "")
        adds = ""
        if site.bias is not None and not norm and not set(layers) & set(site.bias.span.layers):
            adds = next(iter(site.bias.span.layers), "")
        integers = p.bias_integers
        scales = p.bias_scales.reshape(-1 if p.per_channel else ())
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


def _is_of(wanted: Format, given: Any) -> bool:
    """Whether a model's source is of a format that is written from it."""
    if isinstance(given, (str, os.PathLike)):
        return format_of(given) is wanted
    if isinstance(given, (bytes, bytearray, memoryview)):
        return recognized_in_memory(bytes(given)) in (None, wanted)
    return wanted.source_of(given) is not None
