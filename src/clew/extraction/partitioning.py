"""Partitions: a model as parts that run one after the other, each compiled separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.extraction import partition_files
from clew.extraction.extracting import Run, module_of, source_file, value_names
from clew.extraction.file_form import FileSource
from clew.extraction.graph import Cut, ModuleGraph
from clew.extraction.part import (
    TOLERANCE,
    CheckReport,
    InFile,
    Part,
    check_of,
    compared,
)
from clew.extraction.splitting import Names, Range, split
from clew.extraction.stages import Options, Stage, Stages
from clew.ir.expr import Constant, Expr, Var
from clew.ir.module import Module
from clew.support.calling import in_order
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.links import current_links
from clew.support.shown import Shown, counted
from clew.tap.capture import AS_IMPORTED

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class Partition(Stages, Shown):
    """A model as parts, ordered so that each reads only inputs and values of earlier parts.

    Values have unique names; `inputs` and `outputs` pair the model's names with these. `given` and
    `expected` are the inputs and outputs of the captured run. `in_file` has the parts in the
    format of the model's file, if clew can cut it.
    """

    def _about(self) -> str:
        return f"of {counted(len(self.stages), 'part')}"

    def __str__(self) -> str:
        return "\n".join(repr(stage.part) for stage in self.stages)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts in the order they run."""
        return tuple(s.part for s in self.stages)

    def with_options(self, options: Sequence[Options | None]) -> Partition:
        """Returns the partition with options of `clew.compile` for each part, by position.

        Errors: I149 if the number of options differs from the number of parts.
        """
        if len(options) != len(self.stages):
            raise InputError(
                "I149",
                f"options for {len(options)} parts are given, but there are {len(self.stages)}",
                hint="pass one mapping per part, or None",
            )
        pairs = zip(self.stages, options, strict=True)
        chosen = ((s, CompileOptions.named(o or {})) for s, o in pairs)
        return replace(self, stages=tuple(replace(s, options=o) for s, o in chosen))

    def compile(
        self, options: Sequence[Options | None] | None = None, **every: Any
    ) -> CompiledPartition:
        """Returns the parts compiled separately, with options of `clew.compile`: those for all
        parts (`every`), those of each part (`with_options`), and those given here for each part.

        Errors: I149 if the number of options differs from the number of parts; those of
        `clew.compile`.
        """
        chosen = self if options is None else self.with_options(options)
        return chosen._compiled({"opt_level": 3, **CompileOptions.named(every)})

    def _compiled(self, every: Mapping[str, Any]) -> CompiledPartition:
        models = [s.part.compiled({**every, **s.options}) for s in self.stages]
        return CompiledPartition(self, models)

    def check(self, *, tolerance: float = TOLERANCE, **options: Any) -> CheckReport:
        """Runs the parts in sequence on the captured inputs and compares the model's outputs with
        those of the whole model: bit for bit if all are compiled with the captured options, else
        within `tolerance`.

        Options given here apply to all parts; each part's own options take precedence.

        Errors: I136 if no values were captured.
        """
        if self.outputs and not self.expected:
            raise InputError("I136", "the partition has no captured values")
        own = {k: v for s in self.stages for k, v in s.options.items()} if options else {}
        plain = replace(self, stages=tuple(replace(s, options={}) for s in self.stages))
        whole = self if options else plain
        given = {**AS_IMPORTED, **CompileOptions.named(options)}
        found = whole._compiled(given).run(self.given)
        checks = [compared(n, found[n], wanted) for n, wanted in self.expected.items()]
        name = f"{len(self.stages)} parts in sequence"
        return check_of(name, checks, {**own, **given}, AS_IMPORTED, tolerance)

    def save(self, folder: str | Path, form: str = "txt") -> list[Path]:
        """Writes the parts, as clew text (`txt`) or in the format of their file (`onnx`), with
        a manifest and a program that runs them; returns the files. `load_partition` reads them.

        Errors: I135 for another form, I137 for parts without that form, I138 for a folder that
        cannot be written.
        """
        return partition_files.write(self, Path(folder), form)


class CompiledPartition(Shown):
    """The compiled parts of a partition. A value is freed once no remaining part reads it."""

    def __init__(self, partition: Partition, models: Sequence[CompiledModel]) -> None:
        self.partition = partition
        self.models = tuple(models)
        last: dict[str, int] = {}
        for number, stage in enumerate(partition.stages):
            last.update(dict.fromkeys(stage.reads, number))
        kept = set(partition.outputs.values())
        self._dropped = [
            [name for name, at in last.items() if at == number and name not in kept]
            for number in range(len(self.models))
        ]

    def _about(self) -> str:
        return f"of {counted(len(self.models), 'part')}"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The model's inputs."""
        return tuple(self.partition.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The model's outputs."""
        return tuple(self.partition.outputs)

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """Returns the output, or a tuple if there are several. Inputs are given as to a compiled
        model.

        Errors: those of a compiled model.
        """
        results = tuple(self.run(*inputs, **named).values())
        return results[0] if len(results) == 1 else results

    def run(self, /, *inputs: Any, **named: Any) -> dict[str, Array]:
        """Runs the parts one after the other and returns the model's outputs by name. Inputs are
        given as to a compiled model.

        Errors: those of a compiled model.
        """
        given = in_order(self.input_names, inputs, named)
        values: dict[str, Any] = dict(zip(self.partition.inputs.values(), given, strict=True))
        for number, (stage, model) in enumerate(
            zip(self.partition.stages, self.models, strict=True)
        ):
            results = model(*(values[name] for name in stage.reads))
            several = results if len(stage.gives) > 1 else (results,)
            values.update(zip(stage.gives, several, strict=True))
            for name in self._dropped[number]:
                del values[name]
        return {name: values[key] for name, key in self.partition.outputs.items()}


@coded_exhaustion
def partition(
    model: Module | CompiledModel | str | Path,
    *,
    at: Sequence[Names] = (),
    ranges: Sequence[Range] = (),
    inputs: Any = None,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    links: str | None = None,
    source: str | Path | None = None,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Partition:
    """Returns a model as parts that run one after the other and together compute its outputs.

    `at` names the layers that end a part (one, or several that end it together): the part has
    everything they depend on that is in no earlier part; the rest is the last part. Alternatively,
    `ranges` has pairs of start and end layers, as for `extract`: each is a part, and so is what
    comes before, between and after them. The boundary is determined automatically: residuals that
    skip parts, several inputs and outputs, symbolic sizes.

    The other arguments are those of `extract`; the parts have the values of one run.

    Errors: I130 to I134 (layers), I148 for cuts or ranges that contradict each other, I144 if
    neither is given, I041 to I043 and I061 (inputs), and those of loading.
    """
    if bool(at) == bool(ranges):
        raise InputError("I144", "a partition takes either at= or ranges=")
    file = source_file(model, source)
    graph = ModuleGraph(module_of(model, shapes, links, inputs), values=value_names(file))
    pieces = split(graph.layers, at, ranges)
    cuts = _cuts(graph, [units for _, units in pieces])
    run = Run(inputs, seed, threads, on_progress)
    crossing = [v for cut in cuts for v in (*cut.inputs, *cut.carried, *cut.outputs)]
    captured = run.capture(graph.module, [*crossing, *graph.results])
    keys = _Keys(graph)
    stages = []
    for (name, _), cut in zip(pieces, cuts, strict=True):
        reads, module = [*cut.inputs, *cut.carried], cut.module
        part = Part(
            name,
            "layers",
            module,
            cut.layers,
            dict(zip(module.input_names, map(captured.of, reads), strict=True)),
            dict(zip(module.output_names, map(captured.of, cut.outputs), strict=True)),
        )
        stages.append(Stage(part, keys.of(reads), keys.of(cut.outputs)))
    params = graph.module.main.params
    outputs = graph.module.output_names
    made = Partition(
        tuple(stages),
        dict(zip(graph.module.input_names, keys.of(params), strict=True)),
        dict(zip(outputs, keys.of(graph.results), strict=True)),
        captured.inputs,
        {n: captured.of(r) for n, r in zip(outputs, graph.results, strict=True)},
    )
    if file is None:
        return made
    form = FileSource(Path(file), captured.inputs, threads, links or current_links())
    return replace(
        made,
        in_file=InFile(form.format, lambda: form.partition(split(form.layers, at, ranges))),
    )


def _cuts(graph: ModuleGraph, pieces: Sequence[frozenset[int]]) -> list[Cut]:
    """Returns the parts; outputs of the model that depend only on constants belong to the last
    part.
    """
    cuts = [graph.cut(graph.nodes_of(units)) for units in pieces]
    loose = [
        r
        for r in dict.fromkeys(graph.results)
        if isinstance(r, Constant) or (r.id in graph.fixed and not isinstance(r, Var))
    ]
    if loose:
        last = cuts[-1]
        cuts[-1] = Cut(graph, last.members, last.inputs, (*last.outputs, *loose))
    return cuts


class _Keys:
    """Names of values, unique in the model."""

    def __init__(self, graph: ModuleGraph) -> None:
        self._graph = graph
        self._found: dict[int, str] = {}
        self._taken: set[str] = set()

    def of(self, values: Sequence[Expr]) -> tuple[str, ...]:
        """Returns the names of values in order."""
        return tuple(map(self._one, values))

    def _one(self, value: Expr) -> str:
        found = self._found.get(value.id)
        if found is None:
            wanted = found = self._graph.name_of(value)
            count = 1
            while found in self._taken:
                count += 1
                found = f"{wanted}#{count}"
            self._taken.add(found)
            self._found[value.id] = found
        return found
