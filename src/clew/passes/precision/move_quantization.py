"""MoveQuantization: moves and selects quantized elements instead of floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from clew.ir.expr import Attrs, Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType
from clew.ir.visit import users
from clew.ops.registry import Op, argument_references, get_op, runs_on_host
from clew.passes.base import Pass, PassContext
from clew.passes.precision.integer_operands import known_values, reshaped, same_numbers
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class MoveQuantization(Pass):
    """Moves `dequantize` after operators that only move or select elements, and `quantize` before
    them, so that they work on integers; removes a `quantize` of a value dequantized with the same
    scale and zero point.

    Before:
        %1 = nn.max_pool2d(dequantize(%x, s, z)); %2 = reshape(%1); %3 = quantize(%2, s, z)
    After:
        %3 = reshape(nn.max_pool2d(%x))

    A concatenation that only a `quantize` reads becomes one of quantized operands, each with its
    part of a scale per element along the axis. Padding with 0 becomes padding with the zero point.
    A scale and zero point per channel follow a transposition, a slice, and a reshape that only adds
    or removes axes of one element; other movement requires one number for the whole tensor.

    Preconditions: runs before NarrowIntegers, which finds the operands of products. Non-goals:
    arithmetic on quantized elements; selection with a scale that is not known to be positive.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = Exactness("integers", "rounding between quantized layers")

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Mover(ctx).rewrite_module(module)


class _Mover(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self._ctx = ctx
        self._users: dict[int, list[Expr]] = {}
        self._dequantized_as: dict[int, Expr] = {}  # by moved `dequantize`: the original one

    def enter(self, function: Function) -> None:
        self._users.update(users(function))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name == "quantize":
            return self._quantized(old, new, old.args[0])
        if not isinstance(new.op, Op) or argument_references(new.attrs) or runs_on_host(new):
            return new
        if not isinstance(new.type, TensorType) or not any(map(_is_dequantized, new.args)):
            return new
        return self._after(old, new) or new

    # --- dequantize moves down ---

    def _after(self, old: Call, new: Call) -> Expr | None:
        """Returns the dequantized result of the call on integers, or None."""
        moved = _moved(new)
        if not moved or any(not _is_dequantized(new.args[n]) for n in moved):
            return None
        first = new.args[moved[0]]
        assert isinstance(first, Call)
        others = [new.args[n] for n in moved[1:]]
        if not all(_same_parameters(first, other) for other in others):
            return None
        args = list(new.args)
        for n in moved:
            operand = new.args[n]
            assert isinstance(operand, Call)
            args[n] = operand.args[0]
        found = _parameters_after(new, first)
        attrs = _attrs_over_integers(new, first)
        if found is None or attrs is None:
            return None
        with self.covers(old):
            result = Call(new.op, args, attrs)
        if result.tensor.dtype != first.args[0].tensor.dtype:
            return None
        before = self._dequantized_as.get(first.id, old.args[moved[0]])
        with self.covers(old, before):
            value = Call(first.op, [result, *found], first.attrs)
        self._dequantized_as[value.id] = before
        self._ctx.remark(before, f"moved after {new.op_name}, which only moves elements")
        return value

    # --- quantize moves up ---

    def _quantized(self, old: Call, new: Call, before: Expr) -> Expr:
        """Returns what `new` computes, quantizing first; `before` is its operand in `old`."""
        value = new.args[0]
        if _is_dequantized(value):
            same = _unless_the_same(new)
            if same is not new:
                self._ctx.remark(old, "cancelled: it restores the integers of a dequantize")
            return same
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return new
        if argument_references(value.attrs) or runs_on_host(value):
            return new
        rebuilt = isinstance(before, Call) and before.op is value.op
        if not rebuilt or len(self._users.get(before.id, ())) != 1:
            return new
        moved = _contents(value)[0]
        attrs = _attrs_over_integers(value, new)
        if not moved or attrs is None:
            return new
        parameters = _parameters_before(value, new, moved)
        if parameters is None:
            return new
        args = list(value.args)
        for n in moved:
            with self.covers(old):
                each = new.with_args([value.args[n], *parameters[n]])
            args[n] = self._quantized(old, each, before.children[n])
        with self.covers(old, before):
            result = Call(value.op, args, attrs)
        if result.tensor.dtype != new.tensor.dtype:
            return new
        self._ctx.remark(old, f"moved before {value.op_name}, which only moves elements")
        return result


def _unless_the_same(quantize: Call) -> Expr:
    """Returns the integers from which the operand of a `quantize` was dequantized, if both have the
    same parameters; otherwise the call.
    """
    value = quantize.args[0]
    if not _is_dequantized(value):
        return quantize
    assert isinstance(value, Call)
    same = same_numbers(value.args[1:], quantize.args[1:])
    same = same and value.args[0].tensor.dtype == quantize.tensor.dtype
    return value.args[0] if same else quantize


def _is_dequantized(value: Expr) -> bool:
    return isinstance(value, Call) and value.op_name == "dequantize" and not value.attrs.block


def _is_whole(call: Call) -> bool:
    """Whether a scale and a zero point are those of the whole tensor."""
    return not call.attrs.block and all(not p.tensor.rank for p in call.args[1:])


def _contents(call: Call) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Returns the positions of the operands whose elements a call moves (none if it does more), and
    the other values that its result contains.
    """
    assert isinstance(call.op, Op)
    if not all(isinstance(a.type, TensorType) for a in call.args):
        return (), ()
    return call.op.moved_and_written([a.tensor for a in call.args], call.attrs)


def _moved(call: Call) -> tuple[int, ...]:
    """Returns the positions of the operands whose elements a call moves or selects."""
    moved = _contents(call)[0]
    if moved or len(call.args) != 1 or call.op_name == "dequantize":
        return moved
    assert isinstance(call.op, Op)
    first = call.args[0]
    assert isinstance(first, Call)
    scale = known_values(first.args[1])
    positive = _is_whole(first) and scale is not None and bool(scale > 0)
    return (0,) if positive and call.op.selects([first.tensor], call.attrs) else ()


def _parameters_after(call: Call, value: Call) -> Sequence[Expr] | None:
    """Returns the parameters of a dequantized value after a call has moved its elements."""
    if _is_whole(value):
        return value.args[1:]
    rank, shape = value.tensor.rank, value.tensor.shape
    if call.op_name == "transpose":
        axes = call.attrs.axes
        led = [
            reshaped(p, (*(1,) * (rank - p.tensor.rank), *p.tensor.shape)) for p in value.args[1:]
        ]
        return [p if _is_one(p) else get_op("transpose")(p, axes=axes) for p in led]
    if call.op_name == "slice":
        return [_sliced(p, call, rank) for p in value.args[1:]]
    if call.op_name == "reshape":
        found: list[Expr] = []
        for parameter in value.args[1:]:
            if _is_one(parameter):
                found.append(reshaped(parameter, ()))
            elif parameter.tensor.shape == shape:
                found.append(Call(call.op, [parameter], call.attrs))
            elif _wide(shape) == _wide(call.tensor.shape):
                found.append(reshaped(parameter, _by_wide_axes(parameter, shape, call)))
            else:
                return None
        return found
    return None


def _sliced(parameter: Expr, call: Call, rank: int) -> Expr:
    """Returns the part of a parameter that belongs to a slice."""
    given, attrs = parameter.tensor, call.attrs
    ends = [axis % rank - rank for axis in attrs.axes]  # counted from the end
    cut = [n for n, end in enumerate(ends) if -end <= given.rank and given.shape[end] != 1]
    if not cut:
        return parameter
    names = ("axes", "begin", "end", "strides") if attrs.strides else ("axes", "begin", "end")
    values = {**attrs, "axes": ends}
    return get_op("slice")(
        parameter, **{name: tuple(values[name][n] for n in cut) for name in names}
    )


def _wide(shape: Sequence[Any]) -> list[Any]:
    """Returns the sizes other than 1."""
    return [d for d in shape if d != 1]


def _by_wide_axes(parameter: Expr, shape: Sequence[Any], call: Call) -> tuple[Any, ...]:
    """Returns the shape of a parameter of a tensor of some shape after a reshape that adds or
    removes only axes of one element.
    """
    given = (1,) * (len(shape) - parameter.tensor.rank) + parameter.tensor.shape
    kept = iter(p for p, d in zip(given, shape, strict=True) if d != 1)
    return tuple(1 if d == 1 else next(kept) for d in call.tensor.shape)


def _parameters_before(
    call: Call, quantization: Call, moved: Sequence[int]
) -> dict[int, Sequence[Expr]] | None:
    """Returns the parameters with which each operand that a call moves is quantized before it. Of
    those per element along the axis of a concatenation, each operand gets its own.
    """
    if _is_whole(quantization):
        return dict.fromkeys(moved, quantization.args[1:])
    if call.op_name != "concatenate" or quantization.attrs.block:
        return None
    axis = call.attrs.axis % call.tensor.rank
    found: dict[int, Sequence[Expr]] = {}
    start = 0
    for n in moved:
        size = call.args[n].tensor.shape[axis]
        if not isinstance(size, int):
            return None
        parts = [_part(p, axis - call.tensor.rank, start, size) for p in quantization.args[1:]]
        if any(p is None for p in parts):
            return None
        found[n] = [p for p in parts if p is not None]
        start += size
    return found


def _part(parameter: Expr, axis: int, start: int, size: int) -> Expr | None:
    """Returns elements of a constant along an axis, counted from the end; the parameter itself if
    it is one number, None if it varies along another axis or is not constant.
    """
    values = known_values(parameter)
    if values is None or values.ndim > parameter.tensor.rank:
        return None
    if values.ndim < -axis or values.shape[axis] == 1:
        return parameter if all(d == 1 for d in values.shape) else None
    if values.size != values.shape[axis]:
        return None
    rows = np.moveaxis(values, axis, 0)[start : start + size]
    return Constant(np.ascontiguousarray(np.moveaxis(rows, 0, axis)))


def _is_one(parameter: Expr) -> bool:
    return all(d == 1 for d in parameter.tensor.shape)


def _attrs_over_integers(call: Call, quantization: Call) -> Attrs | None:
    """Returns the attributes with which a call moves quantized elements: it pads with their zero
    point instead of 0. None if it writes other values, or if the zero point is unknown.
    """
    written = _contents(call)[1]
    if not written:
        return call.attrs
    if set(written) != {0.0} or call.op_name != "pad" or call.attrs.mode != "constant":
        return None
    zero = quantization.args[2:]
    point = known_values(zero[0]) if zero else np.zeros(())
    return None if point is None or point.ndim else call.attrs.with_(value=float(point))


def _same_parameters(a: Call, b: Expr) -> bool:
    assert isinstance(b, Call)
    same = a.args[0].tensor.dtype == b.args[0].tensor.dtype and a.attrs == b.attrs
    return same and _is_whole(a) and same_numbers(a.args[1:], b.args[1:])
