"""`extract`: a part of a model, chosen by layers, kernel, executor nodes or pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clew import frontends
from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.build.inputs import module_for
from clew.editing.selection import parts_by_pattern
from clew.extraction.file_form import FileSource, Numbers
from clew.extraction.fused import FusedProgram
from clew.extraction.graph import Cut, ModuleGraph, ValueNames
from clew.extraction.part import InFile, Part
from clew.extraction.splitting import Names, Range, names_of
from clew.frontends.formats import cutting, format_of
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.patterns import Pattern
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.links import following
from clew.tap.capture import Unkept, capture

Array = np.ndarray[Any, Any]


@coded_exhaustion
def extract(
    model: Module | CompiledModel | str | Path,
    *,
    start: Names = (),
    end: Names = (),
    layers: Names = (),
    kernel: str = "",
    nodes: str | range | tuple[int, int] | Sequence[str] | None = None,
    pattern: Pattern | None = None,
    match: int = 0,
    inputs: Any = None,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    links: str | None = None,
    source: str | Path | None = None,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Part:
    """Returns a part of a model as a separate model, with the values of a run.

    The part is chosen by one of these:

    - `start` and `end`: everything on paths from the first to the second, inclusive
      (from the model's inputs, or to its outputs, if one is omitted);
    - `layers`: just these;
    - `pattern`: the nodes covered by its `match`-th match;
    - `kernel`: one of a compiled model, by name;
    - `nodes`: some of the executor's nodes: a range of positions in `graph.json`
      (`compiled.graph()`), or names.

    The first three refer to the imported graph: their values come from a run at opt level 0, which
    computes every layer as imported. The last two refer to the optimized program, with its layouts
    and packed weights; their values come from a run of it, of a compiled model or of one compiled
    with `options`.

    `inputs` are the model's, by name or in order; inputs missing from a mapping are random, with
    `seed`. `shapes` gives sizes of a file's symbolic inputs, `links` is that of `clew.load`.
    `source` is the file of a module or compiled model, for parts in its format.

    Errors: I130 to I134 (layers), I141 (kernel), I142, I143 (nodes), I144 (no choice, or several),
    I146 (pattern), I041 to I043 and I061 (inputs), and those of loading and compiling.
    """
    chosen = [
        name
        for name, value in (
            ("start or end", names_of(start) or names_of(end)),
            ("layers", names_of(layers)),
            ("kernel", kernel),
            ("nodes", nodes is not None),
            ("pattern", pattern is not None),
        )
        if value
    ]
    if len(chosen) != 1:
        raise InputError(
            "I144",
            f"{' and '.join(chosen)} are given" if chosen else "no part is chosen",
            hint="give one of start/end, layers, kernel, nodes and pattern",
        )
    source = source_file(model, source)
    run = Run(inputs, seed, threads, on_progress)
    with following(links):
        if kernel or nodes is not None:
            program = fused_program(model, run, shapes, options, value_names(source))
            part = program.kernel(kernel) if kernel else _nodes_of(program, nodes)
            if source is None:
                return part
            given = dict(zip(program.model.input_names, program.arrays, strict=True))
            form = FileSource(Path(source), given, threads)
            return with_form(part, form, lambda s: s.around(part.layers))
        if options:
            raise InputError(
                "I144",
                f"{', '.join(options)}: layers are extracted from the imported graph",
                hint="use these options with kernel= or nodes=, or for the part: part.compile(...)",
            )
        module = module_of(model, shapes, inputs=inputs)
        graph = ModuleGraph(module, values=value_names(source))
        if pattern is not None:
            return _by_pattern(graph, pattern, match, run, source)
        if layers:
            return _exactly(graph, names_of(layers), run, source)
        return _between(graph, [(start, end)], run, source)[0]


@dataclass(frozen=True)
class Run:
    """The run of the whole model in which values are captured."""

    inputs: Any = None
    seed: int = 0
    threads: int | None = None
    on_progress: Callable[[str], None] | None = None

    def capture(self, module: Module, nodes: Sequence[Expr]) -> Any:
        """Returns values of nodes of a module in this run."""
        return capture(
            module,
            nodes,
            self.inputs,
            seed=self.seed,
            threads=self.threads,
            on_progress=self.on_progress,
        )


def module_of(
    model: Module | CompiledModel | str | Path,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    links: str | None = None,
    inputs: Any = None,
) -> Module:
    """Returns a model's imported graph: if it depends on inputs of a run, the one for these inputs.

    Errors: those of importing, and I040 to I043 for `inputs` that the graph depends on.
    """
    if isinstance(model, CompiledModel):
        given = {} if inputs is None else model.named_inputs(inputs, partial=True)
        if model.is_symbolic and len(given) == len(model.inputs):
            model.build_for(given)
        return model.module
    if isinstance(model, Module):
        return model
    if inputs is None:
        return frontends.load(model, inputs=shapes, links=links)
    return module_for(frontends.load_or_defer(model, inputs=shapes, links=links), inputs)


def fused_program(
    model: Module | CompiledModel | str | Path,
    run: Run,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    options: Mapping[str, Any] | None = None,
    values: ValueNames | None = None,
) -> FusedProgram:
    """Returns a compiled model with the inputs of a run.

    Errors: I144 for options with a compiled model.
    """
    if isinstance(model, CompiledModel):
        if options:
            raise InputError(
                "I144",
                f"{', '.join(options)}: the model is already compiled",
                hint="pass the model itself to compile it with options",
            )
        compiled = model
    else:
        compiled = compile(
            model if isinstance(model, Module) else frontends.load_or_defer(model, inputs=shapes),
            **CompileOptions().changed(
                **{
                    "instruments": [Unkept()],
                    "trace": False,
                    "threads": run.threads,
                    "on_progress": run.on_progress,
                    **CompileOptions.named(options or {}),
                }
            ),
        )
    given = {} if run.inputs is None else compiled.named_inputs(run.inputs, partial=True)
    return FusedProgram(compiled, compiled.drawn(given, seed=run.seed), values or {})


def _between(
    graph: ModuleGraph, ranges: Sequence[Range], run: Run, source: str | Path | None
) -> list[Part]:
    """Returns the parts of ranges, with values captured in one run."""
    found = []
    for start, end in ranges:
        begins, ends = names_of(start), names_of(end)
        units = graph.layers.between(begins, ends)
        last = [n for name in ends for n in graph.ends_of(graph.layers.find(name))]
        cut = graph.cut(graph.nodes_of(units), last)
        name = " to ".join([", ".join(n) for n in (begins, ends) if n])
        found.append(Wanted(cut, name, "layers", partial(_range_of, start=begins, end=ends)))
    return captured_parts(found, run, source)


def _range_of(source: FileSource, start: Sequence[str], end: Sequence[str]) -> Numbers:
    return source.range_of(start, end)


def extract_ranges(
    model: Module | CompiledModel | str | Path,
    ranges: Sequence[Range],
    *,
    inputs: Any = None,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    source: str | Path | None = None,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Part]:
    """Returns many ranges of layers, pairs of start and end, with values of one run of the model.

    Arguments and errors are those of `extract`.
    """
    source = source_file(model, source)
    graph = ModuleGraph(module_of(model, shapes, inputs=inputs), values=value_names(source))
    run = Run(inputs, seed, threads, on_progress)
    return _between(graph, ranges, run, source)


def _exactly(
    graph: ModuleGraph, layers: Sequence[str], run: Run, source: str | Path | None
) -> Part:
    units = frozenset(n for name in layers for n in graph.layers.find(name))
    graph.layers.check_convex(units)
    cut = graph.cut(graph.nodes_of(units))
    wanted = Wanted(cut, ", ".join(layers), "layers", lambda s: s.exactly(layers))
    return captured_parts([wanted], run, source)[0]


def _by_pattern(
    graph: ModuleGraph, pattern: Pattern, match: int, run: Run, source: str | Path | None
) -> Part:
    """Returns the part of the chosen match.

    Errors: I146 if the pattern has no such match.
    """
    own = {n.id: n for n in graph.nodes}
    found = [p for p in parts_by_pattern(graph.module, pattern) if p.results[0].id in own]
    if not 0 <= match < len(found):
        count = f"{len(found) or 'no'} match{'es' * (len(found) > 1)}"
        raise InputError(
            "I146",
            f"the pattern {pattern} has {count} in the model, but match {match} was requested",
            hint="matches count from 0"
            if found
            else "clew.patterns.explain(pattern, node) says "
            "where it fails; patterns match imported operators: print(clew.load(...))",
        )
    chosen = found[match]
    members = [own[n] for n in sorted(chosen.nodes & own.keys())]
    graph.check_convex(members)
    cut = graph.cut(members, chosen.results)
    name = f"{chosen.name} (match {match})"
    wanted = Wanted(cut, name, "pattern", lambda s: s.around(cut.layers))
    (part,) = captured_parts([wanted], run, source)
    notes = tuple(
        f"layer {layer} is only partly in it"
        for layer in part.layers
        if not {n.id for n in graph.nodes_of(graph.layers.find(layer))} <= chosen.nodes
    )
    return replace(part, notes=(f"match {match}, of 0 to {len(found) - 1}", *notes))


@dataclass(frozen=True)
class Wanted:
    """A cut, and a function that finds its form in the model's file."""

    cut: Cut
    name: str
    kind: str
    choose: Callable[[FileSource], Numbers]


def captured_parts(wanted: Sequence[Wanted], run: Run, source: str | Path | None) -> list[Part]:
    """Returns the cut parts of one graph, with the values of one run.

    Errors: I131 if a part is empty.
    """
    for one in wanted:
        if not one.cut.outputs:
            raise InputError(
                "I131",
                f"the range is empty: the values of {one.name} follow from parameters alone",
                hint="include a layer that reads them",
            )
    if not wanted:
        return []
    values = [v for w in wanted for v in (*w.cut.inputs, *w.cut.carried, *w.cut.outputs)]
    captured = run.capture(wanted[0].cut.graph.module, values)
    form = None if source is None else FileSource(Path(source), captured.inputs, run.threads)
    found = []
    for one in wanted:
        cut, module = one.cut, one.cut.module
        reads = (*cut.inputs, *cut.carried)
        inputs = dict(zip(module.input_names, map(captured.of, reads), strict=True))
        outputs = dict(zip(module.output_names, map(captured.of, cut.outputs), strict=True))
        part = Part(one.name, one.kind, module, cut.layers, inputs, outputs)
        found.append(part if form is None else with_form(part, form, one.choose))
    return found


def with_form(part: Part, form: FileSource, choose: Callable[[FileSource], Numbers]) -> Part:
    """Returns a part with its form in the file's format."""
    return replace(part, in_file=InFile(form.format, lambda: form.form(part, choose)))


def source_file(
    model: Module | CompiledModel | str | Path, source: str | Path | None
) -> str | Path | None:
    """Returns the file to cut parts from, if known."""
    if source is None and isinstance(model, (str, Path)):
        found = format_of(model)
        return model if found is not None and found.cuts else None
    return source


def value_names(source: str | Path | None) -> ValueNames:
    """Returns the names of layers' results in a file; nothing without one."""
    if source is None:
        return {}
    lines = cutting(source).listing(source).main.lines
    return {(line.name, n): name for line in lines for n, name in enumerate(line.outputs) if name}


def _nodes_of(
    program: FusedProgram, nodes: str | range | tuple[int, int] | Sequence[str] | None
) -> Part:
    """Returns the part with some of the executor's nodes: a range of positions, or names.

    Errors: I133, I134, I143.
    """
    if isinstance(nodes, range) and nodes.step == 1:
        return program.range(nodes.start, nodes.stop)
    if isinstance(nodes, tuple) and len(nodes) == 2 and all(isinstance(n, int) for n in nodes):
        return program.range(*nodes)
    if isinstance(nodes, str):
        begin, _, end = nodes.partition(":")
        if begin.isdecimal() and end.isdecimal():
            return program.range(int(begin), int(end))
        known = {node.name for node in program.nodes}
        return program.named([nodes] if nodes in known else names_of(nodes.split(",")))
    names = [name for name in nodes or () if isinstance(name, str)]
    if not names or len(names) < len(nodes or ()):
        raise InputError(
            "I143",
            f"{nodes!r} are not nodes of the executor",
            hint="a range of positions in graph.json, the end not included, as in 10:25; or names",
        )
    return program.named(names)
