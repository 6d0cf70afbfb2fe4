"""The ONNX form of a part: the model that it came from, cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clew.extraction.capture import AS_IMPORTED, capture
from clew.extraction.layers import LayerGraph
from clew.extraction.part import OnnxPart, Part
from clew.frontends.onnx.file.cut import Cutter
from clew.support.errors import InputError
from clew.support.links import current_links, following
from clew.support.shown import Brief

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX file, and the inputs of the run that values are captured in.

    Inputs of what is cut out have the concrete shapes of that run. `links` are followed as where
    the source was made.
    """

    path: Path
    inputs: Mapping[str, Array]
    threads: int | None = None
    links: str = field(default_factory=current_links)

    @cached_property
    def cutter(self) -> Cutter:
        """The file, read for these shapes."""
        with following(self.links):
            return Cutter(self.path, {n: a.shape for n, a in self.inputs.items()})

    @cached_property
    def layers(self) -> LayerGraph:
        """The file's nodes as layers."""
        cutter = self.cutter
        return LayerGraph(cutter.names, cutter.reads, cutter.fixed, inside=cutter.inside)

    def range_of(self, start: Sequence[str], end: Sequence[str]) -> Numbers:
        """Returns what lies between layers, and those at its end."""
        ends = frozenset(n for name in end for n in self.layers.find(name))
        return Numbers(self.layers.between(start, end), ends)

    def exactly(self, layers: Sequence[str]) -> Numbers:
        """Returns the nodes of layers.

        Errors: I130, I133 when values leave them and come back.
        """
        numbers = frozenset(n for name in layers for n in self.layers.find(name))
        self.layers.check_convex(numbers)
        return Numbers(numbers, frozenset())

    def around(self, layers: Sequence[str]) -> Numbers:
        """Returns the nodes of layers, for those in branches, loops and functions the nodes that
        hold them, and what lies between them.

        Errors: I130.
        """
        inside = self.layers.inside
        tops = dict.fromkeys(inside.get(name, name) for name in layers)
        numbers = frozenset(n for name in tops for n in self.layers.find(name))
        more = self.layers.between_them(numbers)
        notes = [f"layer {self.layers.names[n]}, which lies between, is taken along" for n in more]
        return Numbers(numbers | frozenset(more), frozenset(), tuple(notes))

    def form(self, part: Part, choose: Callable[[OnnxSource], Numbers]) -> OnnxPart:
        """Returns the ONNX form of a part, its boundary values captured under their own names, in
        a run at opt level 0: of a kernel, it is the layers that the kernel works for.
        """
        chosen = choose(self)
        cutter = self.cutter
        names, results = cutter.boundary(chosen.numbers, cutter.outputs_of(chosen.ends))
        module = cutter.giving(list(dict.fromkeys([*names, *results])))
        values = self._values(module)
        inputs = {n: values[n] for n in names}
        outputs = {n: values[n] for n in results}
        options = dict(AS_IMPORTED)
        notes = (*part.notes, *chosen.notes)
        made = replace(
            part, inputs=inputs, outputs=outputs, options=options, notes=notes, onnx=None
        )
        return OnnxPart(made, self._writer(made, chosen.numbers))

    def partition(self, pieces: Sequence[tuple[str, frozenset[int]]]) -> OnnxPartition:
        """Returns the file in pieces, the values between them captured under their own names.

        Errors: I137 for a model of which an output is no layer's.
        """
        cutter = self.cutter
        # What nobody reads is a layer in the file, and in no part.
        pieces = [p for p in pieces if cutter.boundary(p[1])[1]]
        bounds = [cutter.boundary(numbers) for _, numbers in pieces]
        made = {name for _, results in bounds for name in results}
        loose = [n for n in cutter.output_names if n not in made | set(self.inputs)]
        if loose:
            raise InputError(
                "I137",
                f"the output {loose[0]!r} follows from parameters alone: no part in ONNX has it",
                hint="write the parts as text",
            )
        crossing = [name for reads, gives in bounds for name in (*reads, *gives)]
        wanted = dict.fromkeys([*crossing, *cutter.output_names])
        values = self._values(cutter.giving(list(wanted)))
        stages = []
        for (name, numbers), (reads, gives) in zip(pieces, bounds, strict=True):
            layers = tuple(cutter.names[n] for n in sorted(numbers))
            inputs, outputs = ({n: values[n] for n in names} for names in (reads, gives))
            part = Part(name, "layers", cutter.module, layers, inputs, outputs)
            stages.append(OnnxPart(part, self._writer(part, numbers)))
        return OnnxPartition(stages, cutter.output_names, {n: values[n] for n in wanted})

    def _writer(self, part: Part, numbers: frozenset[int]) -> Callable[[Path], list[Path]]:
        about = {"clew.part": part.name, "clew.layers": "\n".join(part.layers)}

        def write(path: Path) -> list[Path]:
            return self.cutter.write(path, numbers, part.inputs, part.outputs, about)

        return write

    def _values(self, module: Any) -> dict[str, Array]:
        captured = capture(module, module.main.body.fields, self.inputs, threads=self.threads)
        pairs = zip(module.output_names, module.main.body.fields, strict=True)
        found = {}
        for name, node in pairs:
            value = captured.of(node)
            if not isinstance(value, np.ndarray) or value.dtype == object:
                raise InputError(
                    "I134",
                    f"the value {name!r} would cross the boundary of the part, and is no tensor",
                    hint="move the boundary to where it is made or taken apart",
                )
            found[name] = value
        return found


@dataclass(frozen=True)
class Numbers:
    """Nodes of an ONNX graph, and those of them whose results are wanted in any case."""

    numbers: frozenset[int]
    ends: frozenset[int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class OnnxPartition(Brief):
    """The parts of an ONNX file in order, its outputs, and all values between the parts by name."""

    parts: Sequence[OnnxPart]
    outputs: Sequence[str]
    values: Mapping[str, Array]
