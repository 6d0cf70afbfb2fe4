"""Control flow: `If`, `Loop` and `Scan` become closed functions whose parameters are the outside
values they use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from clew.frontends.building import call, reshaped, scalar
from clew.frontends.lowering.branches import build_if, read_branch
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.loop_types import LoopTypes
from clew.frontends.lowering.loops import build_loop, length_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Call, Constant, Expr, Var
from clew.ir.types import TensorType, Type, is_native
from clew.ir.values import is_symbolic
from clew.ops.common import differ
from clew.ops.data.structure import folded

# The most iterations to unroll if a loop's state changes its type between iterations.
_MOST_ITERATIONS: Final = 256
_MOST_NODES: Final = 4096


def one_element(layer: Layer, x: Expr) -> Expr:
    """Returns the one element of a tensor, without axes."""
    if isinstance(x.type, TensorType) and is_native(x.type):
        return reshaped(x, ())
    return folded(call("rank.scalar", x), layer.builder.known.get)


@converter("If", values=True)
def if_(layer: Layer) -> Result:
    """A condition known at import leaves only its branch; see `build_if` for the others."""
    known = layer.known(0)
    if known is not None and known.size == 1:
        taken = "then_branch" if bool(known.reshape(-1)[0]) else "else_branch"
        return layer.subgraph(taken, [])
    then, orelse = (
        read_branch(partial(layer.subgraph, name, []), layer.builder.known)
        for name in ("then_branch", "else_branch")
    )
    condition = one_element(layer, layer.input(0))
    return build_if(condition, then, orelse, layer.wrong, layer.builder.asked)


@converter("Loop", values=True)
def loop(layer: Layer) -> Result:
    """State: the condition, the carried values, then the outside values, which do not change.

    A loop whose state changes its type between iterations (above all growing sequences) is unrolled
    if its trip count is known.
    """
    limit, go_on = layer.optional(0), layer.optional(1)
    init = [layer.input(n) for n in range(2, len(layer.inputs))]
    start = scalar(True, "bool") if go_on is None else one_element(layer, go_on)
    types: list[Type] = [expr.type for expr in init]
    plain = all(isinstance(t, TensorType) for t in types)
    changing = layer.importer.changing_sizes.setdefault(layer.name, set())
    loop_types = LoopTypes(types, changing, layer.wrong)
    while True:
        index, going, *state = _parameters(layer, loop_types.types)
        captures = Captures(layer.builder.known)
        before = layer.builder.started
        results = layer.subgraph("body", [index, going, *state], captures)
        if len(results) < 1 + len(state):
            raise layer.wrong(f"carries {len(state)} values, and its body gives {len(results) - 1}")
        changed = loop_types.widen(results[1 : 1 + len(state)])
        if (changed and plain) or not plain:
            plain = True
            written_out = _written_out(layer, start, init, layer.builder.started - before)
            if written_out is not None:
                return written_out
        if not changed:
            break
    proceed = one_element(layer, results[0])
    forever = _passed_on(proceed) is going or _always(layer, proceed)
    trips = _trips(layer, limit, start) if forever else None
    bound = None if limit is None else one_element(layer, limit)
    return build_loop(bound, start, (index, going, *state), proceed, results, init, captures, trips)


def _written_out(layer: Layer, start: Expr, init: Sequence[Expr], nodes: int) -> list[Expr] | None:
    """Returns the results of an unrolled loop; None if its trip count is unknown or too large.
    `nodes` is the number of nodes in the body.
    """
    limit = None if layer.optional(0) is None else layer.known_one(0)
    if layer.optional(0) is not None and not isinstance(limit, int):
        return None
    most = min(_MOST_ITERATIONS, _MOST_NODES // max(nodes, 1))
    state, stacks, going = list(init), list[list[Expr]](), start
    for iteration in range(most + 1):
        known = layer.builder.known.get(going)
        if known is None or is_symbolic(known):
            return None
        if not known.reshape(-1)[0] or (limit is not None and iteration >= limit):
            return _stacked(layer, state, stacks) if stacks or not _stacks(layer, init) else None
        if iteration == most:
            return None
        results = layer.subgraph("body", [scalar(iteration, "i64"), going, *state])
        going, state = one_element(layer, results[0]), results[1 : 1 + len(init)]
        rows = results[1 + len(init) :]
        stacks = stacks or [[] for _ in rows]
        for stack, row in zip(stacks, rows, strict=True):
            stack.append(row)
    return None


def _stacks(layer: Layer, init: Sequence[Expr]) -> int:
    return len(layer.graph("body").output) - 1 - len(init)


def _stacked(layer: Layer, state: Sequence[Expr], stacks: Sequence[list[Expr]]) -> list[Expr]:
    known = layer.builder.known.get
    found = [call("sequence.construct", *rows) for rows in stacks]
    return [
        *state,
        *(folded(call("sequence.concat", s, axis=0, new_axis=True), known) for s in found),
    ]


def _parameters(layer: Layer, types: Sequence[Type]) -> list[Var]:
    names = [value.name for value in layer.graph("body").input]
    if len(names) != len(types) + 2:
        raise layer.wrong(f"carries {len(types)} values, and its body takes {len(names) - 2}")
    scalars = [TensorType((), "i64"), TensorType((), "bool")]
    return [Var(name, type_) for name, type_ in zip(names, [*scalars, *types], strict=True)]


def _passed_on(expr: Expr) -> Expr:
    """Returns the value that an expression only passes on."""
    while isinstance(expr, Call) and expr.op_name == "identity":
        expr = expr.args[0]
    return expr


def _always(layer: Layer, proceed: Expr) -> bool:
    known = layer.builder.known.get(proceed)
    return known is not None and bool(known.reshape(-1)[0])


def _trips(layer: Layer, limit: Expr | None, start: Expr) -> Dim | None:
    """Returns the trip count of a loop, if it is known and only its limit ends the loop."""
    known, first = layer.known(0), layer.builder.known.get(start)
    if limit is None or known is None or first is None:
        return None
    if not bool(first.reshape(-1)[0]):
        return 0
    count = layer.known_one(0)
    return count if isinstance(count, SymDim) else max(int(count), 0)


@converter("Scan", since=8)
def scan_of_batch(layer: Layer) -> Result:
    """Up to version 8 each sequence of a batch is scanned separately, over axis 1. A shorter
    sequence keeps its last state; the standard does not define the stacked values after its end.
    """
    lengths, inputs = layer.optional(0), [layer.input(n) for n in range(1, len(layer.inputs))]
    states, count = _split(layer, inputs)
    scanned = layer.type_of(inputs[-1])
    if scanned.rank < 2:
        raise layer.wrong(f"scans {scanned}, which has no batch")
    batch = scanned.shape[0]
    if not isinstance(batch, int):
        raise layer.open_size(f"the batch, {batch},", batch)
    if any(layer.type_of(x).rank < 1 or layer.type_of(x).shape[0] != batch for x in inputs):
        raise layer.wrong("has inputs whose batches differ in size")
    if batch == 0:
        raise layer.unsupported("over a batch of no sequences")
    backward = _flags(layer, "directions", count)
    results = []
    for n in range(batch):
        own = [call("gather", x, scalar(n, "i64"), axis=0) for x in inputs]
        turned = [_turned(x, flag) for x, flag in zip(own[states:], backward, strict=True)]
        end = None if lengths is None else call("gather", lengths, scalar(n, "i64"), axis=0)
        results.append(_scan(layer, own[:states], turned, end))
    return [_batch_of([result[k] for result in results]) for k in range(len(results[0]))]


def _batch_of(parts: Sequence[Expr]) -> Expr:
    rows = [reshaped(part, (1, *part.tensor.shape)) for part in parts]
    return rows[0] if len(rows) == 1 else call("concatenate", *rows, axis=0)


def _split(layer: Layer, inputs: Sequence[Expr]) -> tuple[int, int]:
    """Returns the numbers of states and of scanned inputs."""
    count = layer.integer("num_scan_inputs")
    if not 1 <= count <= len(inputs):
        raise layer.wrong(f"scans {count} of {len(inputs)} inputs")
    return len(inputs) - count, count


def _flags(layer: Layer, name: str, count: int) -> tuple[int, ...]:
    """Returns directions, 0 if the model gives none."""
    flags: tuple[int, ...] = layer.integers(name) or (0,) * count
    if len(flags) != count or not set(flags) <= {0, 1}:
        raise layer.wrong(f"has {name} {list(flags)} for {count}")
    return flags


def _axes(layer: Layer, name: str, values: Sequence[Expr]) -> list[int]:
    """Returns axes counted from the front, 0 if the model gives none."""
    axes: tuple[int, ...] = layer.integers(name) or (0,) * len(values)
    if len(axes) != len(values):
        raise layer.wrong(f"has {len(axes)} {name} for {len(values)}")
    ranks = [layer.type_of(x).rank for x in values]
    return [layer.positive(a, rank) for a, rank in zip(axes, ranks, strict=True)]


def _moved(x: Expr, source: int, target: int) -> Expr:
    """Returns a value with one axis moved."""
    if source == target:
        return x
    order = [n for n in range(x.tensor.rank) if n != source]
    order.insert(target, source)
    return call("transpose", x, axes=tuple(order))


def _turned(x: Expr, backward: int) -> Expr:
    return call("flip", x, axes=(0,)) if backward else x


@converter("Scan", since=9)
def scan(layer: Layer) -> Result:
    """A loop over slices of some inputs, with its results stacked."""
    inputs = layer.present()
    states, count = _split(layer, inputs)
    sequences = inputs[states:]
    axes = _axes(layer, "scan_input_axes", sequences)
    backward = _flags(layer, "scan_input_directions", count)
    series = [
        _turned(_moved(x, axis, 0), flag)
        for x, axis, flag in zip(sequences, axes, backward, strict=True)
    ]
    found = _scan(layer, inputs[:states], series, None)
    stacks = found[states:]
    prepended = _flags(layer, "scan_output_directions", len(stacks))
    places = _axes(layer, "scan_output_axes", stacks)
    made = zip(stacks, prepended, places, strict=True)
    return [*found[:states], *(_moved(_turned(x, flag), 0, axis) for x, flag, axis in made)]


def _scan(
    layer: Layer, init: Sequence[Expr], sequences: Sequence[Expr], end: Expr | None
) -> list[Expr]:
    """Returns the last states and the stacks of a loop over axis 0 of sequences. From iteration
    `end: i64[]` on, the state does not change.
    """
    if any(layer.type_of(s).rank == 0 for s in sequences):
        raise layer.wrong("scans a value without axes")
    trips = layer.type_of(sequences[0]).shape[0]
    if any(differ(layer.type_of(s).shape[0], trips) for s in sequences):
        raise layer.wrong("scans sequences of unequal length")
    index, going = Var("i", TensorType((), "i64")), Var("going", TensorType((), "bool"))
    carried = [Var(f"state{n}", expr.type) for n, expr in enumerate(init)]
    kept = [*sequences, *([] if end is None else [end])]
    whole = [Var(f"sequence{n}", expr.type) for n, expr in enumerate(kept)]
    captures = Captures(layer.builder.known)
    slices = [call("gather", var, index, axis=0) for var in whole[: len(sequences)]]
    results = layer.subgraph("body", [*carried, *slices], captures)
    if len(results) < len(init):
        raise layer.wrong(f"carries {len(init)} states, and its body gives {len(results)} values")
    after = results[: len(init)]
    if [r.type for r in after] != [c.type for c in carried]:
        raise layer.unsupported("a state that changes its type between iterations")
    if end is not None:
        runs = call("less", index, whole[-1])
        after = [call("where", runs, new, old) for new, old in zip(after, carried, strict=True)]
    # The sequences are passed as a state that never changes.
    size = Constant(trips) if isinstance(trips, int) else length_of(sequences[0])
    found = build_loop(
        size,
        scalar(True, "bool"),
        (index, going, *carried, *whole),
        going,
        [going, *after, *whole, *results[len(init) :]],
        [*init, *kept],
        captures,
        trips,
    )
    return [*found[: len(init)], *found[len(init) + len(kept) :]]
