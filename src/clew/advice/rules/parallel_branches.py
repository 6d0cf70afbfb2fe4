"""Linear branches of one value whose results are added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from clew.advice.candidate import Array, Candidate, Change
from clew.advice.graphs import constant, like, op, op_of, replacing, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.rules.linear_chain import Linear
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr


@register_advice
class ParallelBranches(AdviceRule):
    """Convolutions of one image with equal strides, whose results are added, are one convolution,
    and so are a batch norm and the image itself among the branches: blocks of RepVGG or MobileOne
    that were exported in their form for training.
    """

    name: ClassVar[str] = "parallel-branches"
    title: ClassVar[str] = "linear branches whose results are added"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each sum of branches."""
        inner: set[int] = set()
        for call in reversed(subject.calls):
            if op_of(call) != "add" or call.id in inner or subject.is_fixed(call):
                continue
            if any(subject.is_fixed(a) for a in call.args):
                continue
            terms, sums = _terms(subject, call)
            branches = [_Branch.of(subject, term) for term in terms]
            known = [b for b in branches if b is not None]
            if len(known) < len(branches) or len({b.value.id for b in known}) != 1:
                continue
            layers = [b for b in known if b.layer is not None]
            merged = _merged(subject, known) if layers and len(known) > 1 else None
            if merged is None:
                continue
            inner |= sums
            nodes = [n for b in known for n in b.nodes]
            yield Candidate(
                self.name,
                f"merge {len(known)} parallel linear branches into one layer",
                "their results are added, so one layer with the sum of their weights suffices",
                "fuse the branches before the export, as RepVGG's switch_to_deploy() or "
                "MobileOne's reparameterize_model() do",
                layers_of([*nodes, call]),
                "graph",
                "rounding",
                Change(replacing(self.name, call, [known[0].value], merged)),
            )


def _terms(subject: Subject, call: Call) -> tuple[list[Expr], set[int]]:
    """Returns the values that a tree of sums adds, and the sums inside."""
    found: list[Expr] = []
    sums: set[int] = set()
    todo: list[Expr] = [*call.args]
    while todo:
        node = todo.pop()
        is_sum = op_of(node) == "add" and len(subject.readers(node)) == 1
        if is_sum and not any(subject.is_fixed(a) for a in node.children):
            sums.add(node.id)
            todo += node.children
        else:
            found.append(node)
    return found, sums


class _Branch:
    """A branch: `value`, a layer or none, and f32[channels] of a scale and a shift after it."""

    def __init__(
        self,
        value: Expr,
        layer: Linear | None,
        scale: Array | None,
        shift: Array | None,
        nodes: Sequence[Call],
    ) -> None:
        self.value = value
        self.layer = layer
        self.scale = scale
        self.shift = shift
        self.nodes = nodes

    @staticmethod
    def of(subject: Subject, term: Expr) -> _Branch | None:
        scale: Array | None = None
        shift: Array | None = None
        nodes: list[Call] = []
        node = term
        while isinstance(node, Call) and shape_of(node) is not None:
            nodes.append(node)
            channels = _channels(node)
            if op_of(node) == "nn.batch_norm":
                gamma, beta, mean, var = (subject.value(a) for a in node.args[1:])
                if gamma is None or beta is None or mean is None or var is None:
                    return None
                own = gamma / np.sqrt(var + node.attrs.epsilon)
                pair = own, beta - mean * own
            elif op_of(node) == "add" and channels:
                added = _per_channel(subject, node, channels)
                if added is None:
                    break
                pair = np.ones(channels), added
            else:
                break
            shift = pair[1] * (1 if scale is None else scale) + (0 if shift is None else shift)
            scale = pair[0] * (1 if scale is None else scale)
            node = next(a for a in node.args if not subject.is_fixed(a))
            if len(subject.readers(nodes[-1])) > 1:
                return None
        layer = Linear.of(subject, node) if isinstance(node, Call) else None
        if layer is None:
            kept = nodes if not nodes or nodes[-1] is not node else nodes[:-1]
            return _Branch(node, None, scale, shift, kept)
        if len(subject.readers(node)) > 1:
            return None
        return _Branch(layer.call.args[0], layer, scale, shift, nodes)


def _channels(node: Call) -> int:
    shape = node.tensor.concrete
    return shape[1] if len(shape) == 4 else shape[-1] if shape else 0


def _per_channel(subject: Subject, node: Call, channels: int) -> Array | None:
    """Returns f32[channels] that an addition adds to an image or rows, if it adds a constant."""
    for n, arg in enumerate(node.args):
        added = subject.value(arg) if subject.is_fixed(arg) else None
        if added is None or node.args[1 - n].type != node.type:
            continue
        rank = node.tensor.rank
        axis = 1 if rank == 4 else rank - 1
        shape = (1,) * (rank - added.ndim) + added.shape
        if all(size == 1 for place, size in enumerate(shape) if place != axis):
            return np.broadcast_to(added.reshape(-1), (channels,)).astype(np.float64)
    return None


def _merged(subject: Subject, branches: Sequence[_Branch]) -> Callable[[Expr], Expr] | None:
    """Returns the function that computes a sum of branches by one layer; None if they differ in
    strides, in the values they read, or in the position of their windows.
    """
    layers = [b.layer for b in branches if b.layer is not None]
    largest = max(layers, key=lambda one: one.weight[0, 0].size)
    call = largest.call
    outputs, inputs, *kernel = largest.weight.shape
    is_image = not largest.is_dense
    weight = np.zeros(largest.weight.shape)
    shift = np.zeros(outputs)
    for branch in branches:
        scale = np.ones(outputs) if branch.scale is None else branch.scale
        if branch.shift is not None:
            shift = shift + branch.shift
        part = _placed(branch, call, outputs, inputs, kernel) if is_image else _flat(branch, inputs)
        if part is None or part.shape != weight.shape:
            return None
        weight = weight + scale.reshape(-1, *(1,) * (weight.ndim - 1)) * part

    def build(x: Expr) -> Expr:
        if not is_image:
            return op("add", op("nn.dense", x, constant(weight)), constant(shift))
        made = like(call, x, constant(weight), channels=0)
        return op("add", made, constant(shift.reshape(-1, 1, 1)))

    return build


def _flat(branch: _Branch, inputs: int) -> Array | None:
    if branch.layer is None:
        return np.eye(inputs)
    return branch.layer.weight.astype(np.float64) if branch.layer.is_dense else None


def _placed(
    branch: _Branch, call: Call, outputs: int, inputs: int, kernel: Sequence[int]
) -> Array | None:
    """Returns a branch's weight inside a kernel of the size of another call's."""
    top, left, bottom, right = call.attrs.padding
    if branch.layer is None:
        if outputs != inputs or call.attrs.strides != (1, 1):
            return None
        own, padding = np.eye(outputs).reshape(outputs, inputs, 1, 1), (0, 0, 0, 0)
    else:
        attrs = branch.layer.call.attrs
        if branch.layer.is_dense or attrs.strides != call.attrs.strides:
            return None
        if {*attrs.dilation, *call.attrs.dilation} != {1}:
            return None
        own, padding = branch.layer.weight.astype(np.float64), attrs.padding
    y, x = top - padding[0], left - padding[1]
    height, width = own.shape[2:]
    fits = y >= 0 and x >= 0 and y + height <= kernel[0] and x + width <= kernel[1]
    ends = bottom - padding[2] == kernel[0] - y - height and (
        right - padding[3] == kernel[1] - x - width
    )
    if not fits or not ends or own.shape[:2] != (outputs, inputs):
        return None
    found = np.zeros((outputs, inputs, *kernel))
    found[:, :, y : y + height, x : x + width] = own
    return found
