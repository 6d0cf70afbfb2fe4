"""Values that are computed in full, although only a part is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final

from clew.advice.axes import operand_axes
from clew.advice.candidate import Candidate, Change
from clew.advice.graphs import op_of, replacing, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr
from clew.ir.rewrite import rebuild
from clew.ops.registry import get_op

_COSTLY: Final = ("nn.dense", "nn.matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d")
_MOST_OPERATORS: Final = 64

Select = Callable[[Expr, int], Expr]
"""Selects elements of a value along one of its axes."""


@register_advice
class LateSelection(AdviceRule):
    """A slice or a gather of a product's rows, such as the last position before a language model's
    head, computes rows that nobody reads. The selection can come before the product, and before
    all operators that compute each row separately.
    """

    name: ClassVar[str] = "late-selection"
    title: ClassVar[str] = "products whose results are mostly discarded by a later slice or gather"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each selection that can come before a product."""
        for call in subject.calls:
            selection = _selection(subject, call)
            if selection is None:
                continue
            value, axis, select, kept = selection
            region = _Region(subject)
            if not region.grow(value, axis) or not region.products:
                continue
            passed = region.products
            inputs = region.inputs
            extent = (shape_of(value) or (0,))[axis]
            yield Candidate(
                self.name,
                f"select {kept} of {extent} elements before {_counted(len(passed))}, not after",
                f"{extent - kept} of {extent} elements along axis {axis} are computed for nothing",
                "move the indexing before the layer: head(x[:, -1]) instead of head(x)[:, -1]",
                layers_of([call, *passed]),
                "attribute",
                "rounding",
                Change(replacing(self.name, call, inputs, region.builder(value, call, select))),
            )


def _counted(count: int) -> str:
    return "the product" if count == 1 else f"{count} products"


def _selection(subject: Subject, call: Call) -> tuple[Expr, int, Select, int] | None:
    """Returns the value that a call selects from, the axis, how to select along any axis, and the
    number of elements that it keeps; None if the call does not select fewer along one axis.
    """
    if subject.is_fixed(call):
        return None
    if op_of(call) == "slice":
        return _slice(call)
    if op_of(call) == "gather" and subject.is_fixed(call.args[1]):
        return _gather(call)
    return None


def _slice(call: Call) -> tuple[Expr, int, Select, int] | None:
    value, attrs = call.args[0], call.attrs
    before, after = shape_of(value), shape_of(call)
    if before is None or after is None:
        return None
    axes = [a % len(before) for a in attrs.axes]
    cut = [n for n, a in enumerate(axes) if before[a] != after[a]]
    if len(cut) != 1 or not all(isinstance(b, int) for b in (*attrs.begin, *attrs.end)):
        return None
    place = cut[0]
    strides = attrs.strides or (1,) * len(axes)
    if any(s != 1 for n, s in enumerate(strides) if n != place):
        return None
    bounds = {"begin": (attrs.begin[place],), "end": (attrs.end[place],)}

    def select(one: Expr, axis: int) -> Expr:
        return get_op("slice")(one, **bounds, strides=(strides[place],), axes=(axis,))

    return value, axes[place], select, after[axes[place]]


def _gather(call: Call) -> tuple[Expr, int, Select, int] | None:
    value, indices = call.args
    before = shape_of(value)
    if before is None or indices.tensor.rank > 1:
        return None
    axis = call.attrs.axis % len(before)
    kept = indices.tensor.concrete[0] if indices.tensor.rank else 1
    if kept >= before[axis]:
        return None

    def select(one: Expr, along: int) -> Expr:
        from_end = call.attrs.from_end
        found = get_op("gather")(one, indices, axis=along, from_end=from_end)
        if indices.tensor.rank:
            return found
        shape = list(one.tensor.shape)
        shape[along] = 1
        return get_op("reshape")(found, shape=tuple(shape))

    return value, axis, select, kept


class _Region:
    """The operators over which a selection moves, from the selected value towards the inputs."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._axes: dict[int, int] = {}
        self._frontier: dict[int, tuple[Expr, int | None]] = {}
        self._inside: dict[int, Call] = {}

    def grow(self, value: Expr, axis: int) -> bool:
        """Adds what computes a value element by element along an axis; returns whether it is more
        than nothing.
        """
        todo: list[tuple[Expr, int, bool]] = [(value, axis, True)]
        while todo:
            node, along, is_root = todo.pop()
            if node.id in self._axes:
                if self._axes[node.id] != along:
                    return False
                continue
            self._axes[node.id] = along
            places = operand_axes(node, along) if isinstance(node, Call) else None
            alone = is_root or self._is_read_here_only(node)
            small = len(self._inside) < _MOST_OPERATORS
            if places is None or not alone or not small or self._subject.is_output(node):
                self._frontier[node.id] = (node, along)
                continue
            if is_root and len(self._subject.readers(node)) > 1:
                return False
            assert isinstance(node, Call)
            self._inside[node.id] = node
            for arg, place in zip(node.args, places, strict=True):
                if place is None:
                    self._frontier.setdefault(arg.id, (arg, None))
                else:
                    todo.append((arg, place, False))
        mixed = {i for i, (_, along) in self._frontier.items() if along is None} & set(self._axes)
        return bool(self._inside) and not mixed

    def _is_read_here_only(self, node: Expr) -> bool:
        return len(self._subject.readers(node)) == 1

    @property
    def products(self) -> list[Call]:
        """The products in the region."""
        return [c for c in self._inside.values() if op_of(c) in _COSTLY]

    @property
    def inputs(self) -> Sequence[Expr]:
        """The values that the region reads."""
        return [node for node, _ in self._frontier.values()]

    def builder(self, value: Expr, call: Call, select: Select) -> Callable[..., Expr]:
        """Returns the function that computes a selection from the values that the region reads."""
        shape = call.tensor.shape

        def shaped(found: Expr) -> Expr:
            return found if found.tensor.shape == shape else get_op("reshape")(found, shape=shape)

        frontier = list(self._frontier.values())
        order = [n for n in self._subject.calls if n.id in self._inside]

        def build(*values: Expr) -> Expr:
            new: dict[int, Expr] = {}
            for (node, along), given in zip(frontier, values, strict=True):
                new[node.id] = given if along is None else select(given, along)
            for node in order:
                new[node.id] = _resized(node, [new[a.id] for a in node.args])
            return shaped(new[value.id])

        return build


def _resized(call: Call, args: Sequence[Expr]) -> Expr:
    """Returns a call on arguments of other sizes; a reshape keeps the sizes of its other axes."""
    if op_of(call) != "reshape":
        return rebuild(call, list(args))
    before, after = call.args[0].tensor.concrete, list(call.tensor.concrete)
    now = args[0].tensor.concrete
    for place, (was, size) in enumerate(zip(before, now, strict=True)):
        if was == size:
            continue
        for axis in range(len(after)):
            found = operand_axes(call, axis)
            if found is not None and found[0] == place:
                after[axis] = size
    return get_op("reshape")(args[0], shape=tuple(after))
