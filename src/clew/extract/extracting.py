"""`extract`: a part of a model, chosen by layers, kernel, executor nodes or pattern."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clew import frontends
from clew.extract.capture import capture
from clew.extract.graph import Cut, ModuleGraph
from clew.extract.onnx_form import OnnxSource
from clew.extract.part import Part
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.support.errors import InputError

Names = str | Sequence[str]


def extract(
    model: Module | str | Path,
    *,
    start: Names = (),
    end: Names = (),
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Part:
    """Returns a part of a model with the values that a run gives it."""
    module = model if isinstance(model, Module) else frontends.load(model, inputs=shapes)
    source = None if isinstance(model, Module) or Path(model).suffix.lower() != ".onnx" else model
    graph = ModuleGraph(module)
    begins, ends = _names(start), _names(end)
    units = graph.layers.between(begins, ends)
    last = [n for name in ends for n in graph.ends_of(graph.layers.find(name))]
    cut = graph.cut(graph.nodes_of(units), last)
    if not cut.outputs:
        raise InputError("I131", "the range is empty: its values follow from parameters alone")
    name = " to ".join([", ".join(n) for n in (begins, ends) if n]) or "whole"
    run = {"inputs": inputs, "seed": seed, "threads": threads, "on_progress": on_progress}
    part, given = captured_part(cut, name, "layers", run)
    if source is not None:
        form = OnnxSource(Path(source), given, threads)
        made = replace(part, onnx=lambda: form.form(part, lambda s: s.range_of(begins, ends)))
        return made
    return part


def captured_part(
    cut: Cut, name: str, kind: str, run: Mapping[str, Any]
) -> tuple[Part, Mapping[str, Any]]:
    """Returns what was cut out, with the values of a run, and the inputs of that run."""
    values: list[Expr] = [*cut.inputs, *cut.carried]
    captured = capture(cut.graph.module, [*values, *cut.outputs], **run)
    module = cut.module
    inputs = dict(zip(module.input_names, map(captured.of, values), strict=True))
    outputs = dict(zip(module.output_names, map(captured.of, cut.outputs), strict=True))
    layers = dict.fromkeys(
        layer for n in cut.graph.nodes if n.id in cut.members for layer in n.span.layers
    )
    return Part(name, kind, module, tuple(layers), inputs, outputs), captured.inputs


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
