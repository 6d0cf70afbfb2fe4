"""The ONNX form of a part: the model that it came from, cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clew.extraction.capture import capture
from clew.extraction.layers import LayerGraph
from clew.extraction.part import OnnxPart, Part
from clew.frontends.onnx.cut import Cutter
from clew.support.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OnnxSource:
    """An ONNX file, and the inputs of the run that values are captured in.

    Inputs of what is cut out have the concrete shapes of that run.
    """

    path: Path
    inputs: Mapping[str, Array]
    threads: int | None = None

    @cached_property
    def cutter(self) -> Cutter:
        """The file, read for these shapes."""
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
        """Returns the nodes of layers; for those in branches, loops and functions, the nodes that
        hold them.

        Errors: I130, I133 when values leave them and come back.
        """
        inside = self.layers.inside
        tops = dict.fromkeys(inside.get(name, name) for name in layers)
        numbers = frozenset(n for name in tops for n in self.layers.find(name))
        self.layers.check_convex(numbers)
        return Numbers(numbers, frozenset())

    def form(self, part: Part, choose: Callable[[OnnxSource], Numbers]) -> OnnxPart:
        """Returns the ONNX form of a part, its boundary values captured under their own names."""
        chosen = choose(self)
        cutter = self.cutter
        names, results = cutter.boundary(chosen.numbers, cutter.outputs_of(chosen.ends))
        module = cutter.giving(list(dict.fromkeys([*names, *results])))
        values = self._values(module)
        inputs = {n: values[n] for n in names}
        outputs = {n: values[n] for n in results}
        about = {"clew.part": part.name, "clew.layers": "\n".join(part.layers)}

        def write(path: Path) -> list[Path]:
            return cutter.write(path, chosen.numbers, inputs, outputs, about)

        made = replace(part, inputs=inputs, outputs=outputs, onnx=None)
        return OnnxPart(made, write)

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
