"""The form of a part in its model's own format, cut from the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clew.extraction.layers import LayerGraph
from clew.extraction.part import FilePart, Part, notes_of
from clew.frontends.cutting import Cutter
from clew.frontends.format import Format
from clew.frontends.formats import cutting
from clew.support.errors import InputError
from clew.support.links import current_links, following
from clew.support.shown import Brief
from clew.tap.capture import AS_IMPORTED, capture

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FileSource:
    """A model's file, and the inputs of the run in which values are captured.

    Inputs of a part have the concrete shapes of that run. `links` selects the links that are
    followed, as when the source was made.
    """

    path: Path
    inputs: Mapping[str, Array]
    threads: int | None = None
    links: str = field(default_factory=current_links)

    @cached_property
    def format(self) -> Format:
        """The file's format."""
        return cutting(self.path)

    @cached_property
    def cutter(self) -> Cutter:
        """The file, imported for these shapes."""
        with following(self.links):
            shapes = {n: a.shape for n, a in self.inputs.items()}
            return self.format.cutter(self.path, shapes)

    @cached_property
    def layers(self) -> LayerGraph:
        """The file's layers and their order."""
        cutter = self.cutter
        return LayerGraph(cutter.names, cutter.reads, cutter.fixed, inside=cutter.inside)

    def range_of(self, start: Sequence[str], end: Sequence[str]) -> Numbers:
        """Returns the nodes between layers, and the nodes of the end layers."""
        ends = frozenset(n for name in end for n in self.layers.find(name))
        return Numbers(self.layers.between(start, end), ends)

    def exactly(self, layers: Sequence[str]) -> Numbers:
        """Returns the nodes of layers.

        Errors: I130; I133 if values leave them and return.
        """
        numbers = frozenset(n for name in layers for n in self.layers.find(name))
        self.layers.check_convex(numbers)
        return Numbers(numbers, frozenset())

    def around(self, layers: Sequence[str]) -> Numbers:
        """Returns the nodes of layers (for layers in branches, loops and functions, the enclosing
        nodes) and the nodes between them.

        Errors: I130.
        """
        inside = self.layers.inside
        tops = dict.fromkeys(inside.get(name, name) for name in layers)
        numbers = frozenset(n for name in tops for n in self.layers.find(name))
        more = self.layers.between_them(numbers)
        notes = [f"layer {self.layers.names[n]} is between them and is included" for n in more]
        return Numbers(numbers | frozenset(more), frozenset(), tuple(notes))

    def form(self, part: Part, choose: Callable[[FileSource], Numbers]) -> FilePart:
        """Returns the form of a part in the file's format. Its boundary values are captured under
        their names in the file, in a run at opt level 0. For a kernel, the form has the layers that
        the kernel serves.
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
            part, inputs=inputs, outputs=outputs, options=options, notes=notes, in_file=None
        )
        return FilePart(made, self._writer(made, chosen.numbers))

    def partition(self, pieces: Sequence[tuple[str, frozenset[int]]]) -> FilePartition:
        """Returns the file in parts; the values between them are captured under their
        names in the file.

        Errors: I137 if no layer computes an output of the model.
        """
        cutter = self.cutter
        # An unused result is a layer in the file, but in no part.
        pieces = [p for p in pieces if cutter.boundary(p[1])[1]]
        bounds = [cutter.boundary(numbers) for _, numbers in pieces]
        made = {name for _, results in bounds for name in results}
        loose = [n for n in cutter.output_names if n not in made | set(self.inputs)]
        if loose:
            raise InputError(
                "I137",
                f"the output {loose[0]!r} follows from parameters alone: no part in "
                f"{self.format.title} has it",
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
            stages.append(FilePart(part, self._writer(part, numbers)))
        return FilePartition(stages, cutter.output_names, {n: values[n] for n in wanted})

    def _writer(self, part: Part, numbers: frozenset[int]) -> Callable[[Path], list[Path]]:
        about = notes_of(part)

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
                    f"the value {name!r} would cross the boundary of the part, but is not a tensor",
                    hint="move the boundary to where it is built or unpacked",
                )
            found[name] = value
        return found


@dataclass(frozen=True)
class Numbers:
    """Layers of a file, including those whose results are always outputs."""

    numbers: frozenset[int]
    ends: frozenset[int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class FilePartition(Brief):
    """The parts of a file in order, its outputs, and all values between the parts by name."""

    parts: Sequence[FilePart]
    outputs: Sequence[str]
    values: Mapping[str, Array]
