"""Transposes at the borders of a model, and around operators that do not need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from clew.advice.candidate import Arrays, Candidate, Change
from clew.advice.graphs import (
    dtype_of,
    like,
    op,
    op_of,
    replacing,
    shape_of,
    together,
    with_input,
    with_main,
)
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.te.analysis import Kind

_SAVED: Final = 0.5  # of the transposes' time
_FUSED: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)
_BY_AXIS: Final = ("nn.softmax", "nn.log_softmax", "concatenate")
_BY_AXES: Final = ("sum", "mean", "max", "min", "prod")
_MOST: Final = 64


@register_advice
class Layout(AdviceRule):
    """An exporter that keeps the layout of its framework transposes images at the model's inputs
    and outputs, and around single operators. Callers can pass the other layout, and elementwise
    operators, softmax, reductions and concatenations can compute in either.
    """

    name: ClassVar[str] = "layout"
    title: ClassVar[str] = "transposes that an exporter left in the model"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each input and output, and for each region between transposes."""
        for param in subject.module.main.params:
            yield from self._input(subject, param)
        yield from self._outputs(subject)
        done: set[int] = set()
        for call in subject.calls:
            if op_of(call) == "transpose" and call.id not in done and not subject.is_fixed(call):
                region = _Region(subject, tuple(call.attrs.axes))
                if region.grow(call) and region.removed > region.added:
                    done.update(t.id for t in region.entries.values())
                    yield self._region(region)

    def _input(self, subject: Subject, param: Var) -> Iterator[Candidate]:
        readers = [r for r in subject.readers(param) if isinstance(r, Call)]
        orders = {tuple(r.attrs.axes) if op_of(r) == "transpose" else () for r in readers}
        shape = shape_of(param)
        if len(orders) != 1 or () in orders or shape is None:
            return
        axes, name = next(iter(orders)), param.name
        back = tuple(int(a) for a in np.argsort(axes))
        made = TensorType(tuple(shape[a] for a in axes), dtype_of(param))

        def module(module: Module) -> Module:
            return with_input(module, name, made, lambda x: op("transpose", x, axes=back))

        def inputs(inputs: Arrays) -> Arrays:
            return {**inputs, name: np.ascontiguousarray(np.transpose(inputs[name], axes))}

        yield Candidate(
            self.name,
            f"pass the input {name!r} as {list(made.shape)}, not {list(shape)}",
            "the model transposes it first",
            "tf2onnx --inputs-as-nchw, or leave the permute() out of the exported model",
            layers_of(readers),
            "exporter",
            "interface",
            Change(module=module, inputs=inputs),
            share=1.0,
        )

    def _outputs(self, subject: Subject) -> Iterator[Candidate]:
        body = subject.module.main.body
        fields = body.fields if isinstance(body, Tuple) else (body,)
        for name, value in zip(subject.module.output_names, fields, strict=True):
            if op_of(value) != "transpose" or shape_of(value) is None:
                continue
            assert isinstance(value, Call)
            axes = tuple(value.attrs.axes)

            def module(module: Module, name: str = name) -> Module:
                now = module.main.body
                assert isinstance(now, Tuple)
                given = dict(zip(module.output_names, now.fields, strict=True))[name]
                assert isinstance(given, Call)
                return with_main(module, {given.id: given.args[0]})

            def outputs(outputs: Arrays, name: str = name, axes: Sequence[int] = axes) -> Arrays:
                return {**outputs, name: np.transpose(outputs[name], axes)}

            yield Candidate(
                self.name,
                f"return the output {name!r} as it is computed, not transposed",
                "a transpose copies the output",
                "tf2onnx --outputs-as-nchw, or leave the permute() out of the exported model",
                layers_of([value]),
                "exporter",
                "interface",
                Change(module=module, outputs=outputs),
                share=_SAVED,
            )

    def _region(self, region: _Region) -> Candidate:
        transposes = [
            *region.entries.values(),
            *(e for e in region.exits if op_of(e) == "transpose"),
        ]
        count = region.removed
        return Candidate(
            self.name,
            f"compute {len(region.inside)} operators in the layout of their operands, without "
            f"{count} transposes",
            "the operators between these transposes compute the same in either layout",
            "keep one layout in the model's source (channels_last is a memory format, not a "
            "permute()), or let --apply do it",
            layers_of([*transposes, *region.inside.values()]),
            "graph",
            "rounding",
            Change(
                together(
                    replacing(self.name, exit_, region.inputs, region.builder(exit_))
                    for exit_ in region.exits
                )
            ),
        )


@dataclass
class _Region:
    """Operators that read transposes with one order of axes, and compute the same without them."""

    subject: Subject
    axes: tuple[int, ...]
    entries: dict[int, Call] = field(default_factory=dict)
    inside: dict[int, Call] = field(default_factory=dict)
    exits: list[Call] = field(default_factory=list)

    @property
    def removed(self) -> int:
        """The transposes that disappear."""
        back = tuple(np.argsort(self.axes))
        return len(self.entries) + sum(
            op_of(e) == "transpose" and tuple(e.attrs.axes) == back for e in self.exits
        )

    @property
    def added(self) -> int:
        """The transposes that are added."""
        return sum(op_of(e) != "transpose" for e in self.exits)

    @property
    def inputs(self) -> list[Expr]:
        """The values before the transposes."""
        return [t.args[0] for t in self.entries.values()]

    def grow(self, first: Call) -> bool:
        """Adds what reads a transpose, and what else these operators read; returns whether it found
        any operator.
        """
        self.entries[first.id] = first
        todo: list[Expr] = [first]
        while todo:
            node = todo.pop()
            for reader in self.subject.readers(node):
                if reader.id in self.inside or not isinstance(reader, Call):
                    continue
                if len(self.inside) < _MOST and self._fits(reader):
                    self.inside[reader.id] = reader
                    todo.append(reader)
        self._shrink()
        for node in self.inside.values():
            for arg in node.args:
                if self._is_entry(arg):
                    assert isinstance(arg, Call)
                    self.entries[arg.id] = arg
        for entry in self.entries.values():
            if any(r.id not in self.inside for r in self.subject.readers(entry)):
                return False
        for node in self.inside.values():
            outside = [r for r in self.subject.readers(node) if r.id not in self.inside]
            plain = [r for r in outside if op_of(r) != "transpose"]
            self.exits += [r for r in outside if isinstance(r, Call) and op_of(r) == "transpose"]
            if plain or self.subject.is_output(node):
                self.exits.append(node)
        return bool(self.inside) and bool(self.exits)

    def _is_entry(self, node: Expr) -> bool:
        return (
            isinstance(node, Call)
            and op_of(node) == "transpose"
            and tuple(node.attrs.axes) == self.axes
            and not self.subject.is_fixed(node)
        )

    def _shrink(self) -> None:
        """Removes operators that read a value in the other order."""
        changed = True
        while changed:
            changed = False
            for node in list(self.inside.values()):
                known = (
                    a.id in self.inside or self._is_entry(a) or self.subject.is_fixed(a)
                    for a in node.args
                )
                if not all(known):
                    del self.inside[node.id]
                    changed = True

    def _fits(self, call: Call) -> bool:
        shape = shape_of(call)
        if not isinstance(call.op, Op) or shape is None or len(shape) != len(self.axes):
            return False
        if any(shape_of(a) is None for a in call.args):
            return False
        if op_of(call) in _BY_AXIS:
            return True
        if op_of(call) in _BY_AXES:
            return bool(call.attrs.keepdims)
        return call.op.kind([a.tensor for a in call.args], call.attrs) in _FUSED

    def builder(self, exit_: Call) -> Callable[..., Expr]:
        """Returns the function that computes an exit from the values before the transposes."""
        order = [c for c in self.subject.calls if c.id in self.inside]
        entries = list(self.entries.values())
        rank = len(self.axes)
        back = tuple(int(a) for a in np.argsort(self.axes))

        def build(*values: Expr) -> Expr:
            new = {e.id: value for e, value in zip(entries, values, strict=True)}
            for node in order:
                args = [new.get(a.id) or self._turned(a, back, rank) for a in node.args]
                new[node.id] = self._permuted(node, args)
            if op_of(exit_) != "transpose":
                return op("transpose", new[exit_.id], axes=self.axes)
            axes = tuple(self.axes[a] for a in exit_.attrs.axes)
            found = new[exit_.args[0].id]
            return found if axes == tuple(range(rank)) else op("transpose", found, axes=axes)

        return build

    def _turned(self, node: Expr, back: Sequence[int], rank: int) -> Expr:
        """Returns a constant in the order of axes before the transposes."""
        shape = node.tensor.concrete
        whole = (1,) * (rank - len(shape)) + shape
        if set(whole) == {1}:
            return node
        return op("transpose", op("reshape", node, shape=whole), axes=tuple(back))

    def _permuted(self, node: Call, args: Sequence[Expr]) -> Expr:
        rank = len(self.axes)
        if op_of(node) in _BY_AXIS:
            return like(node, *args, axis=self.axes[node.attrs.axis % rank])
        if op_of(node) in _BY_AXES:
            gone = tuple(a % rank for a in node.attrs.axes) or tuple(range(rank))
            return like(node, *args, axes=tuple(self.axes[a] for a in gone))
        return like(node, *args)
