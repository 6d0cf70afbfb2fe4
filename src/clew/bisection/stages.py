"""Finds the first stage whose outputs are wrong, and the first wrong node there.

Stages are evaluated by the interpreter; values of nodes shared by several stages are computed once.
Bisection over the stages finds the first wrong one. In that stage, every node that corresponds to a
node of the previous stage is then evaluated *on the values of the previous stage*, so an error
shows only where it arises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.bisection.numbers import dtypes_of, due_of, error_of, narrow_in
from clew.build.relayout import relayout
from clew.build.tracing import evaluate
from clew.ir.expr import Attrs, Call, Constant, Expr, Function, Tuple, Var
from clew.ir.interpret import Results, interpret_values
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.types import TensorType, TupleType, Type, to_numpy
from clew.ir.visit import inner_functions, post_order
from clew.ir.wide_floats import has_narrow, widened, widened_attrs, widened_type
from clew.support import walk
from clew.trace.trace import Trace

Say = Callable[[str], None]
_MOST_WIDE_NODES: Final = 200


@dataclass(frozen=True)
class Parting:
    """A node of a stage and the corresponding node of the previous stage. `error` is that of its
    value computed from values of the previous stage; `due` is the error that rounding may cause.
    """

    old: Expr
    new: Expr
    error: float
    due: float

    @property
    def excess(self) -> float:
        """The error divided by the error allowed."""
        return self.error / self.due


class Stages:
    """Evaluates the stages of a trace on one set of checked inputs. `sizes` has values of the named
    sizes that the shapes of inputs do not give.
    """

    def __init__(
        self, trace: Trace, inputs: Mapping[str, Any], sizes: Mapping[str, int], say: Say
    ) -> None:
        self.trace = trace
        self.inputs = dict(inputs)
        self.sizes = sizes
        self._say = say
        self._results = Results()
        self._values: dict[int, dict[int, Any]] = {}
        self._once: dict[int, frozenset[int]] = {}
        self._pairs: dict[tuple[int, int], dict[int, Expr]] = {}
        changed = [n for n, s in enumerate(trace.stages) if s.changed]
        self.changed: list[int] = changed

    def values(self, stage: int) -> dict[int, Any]:
        """Returns the values of a stage's nodes, by id."""
        stage = max(s for s in self.changed if s <= stage)
        found = self._values.get(stage)
        if found is None:
            record = self.trace.stages[stage]
            self._say(f"evaluating stage {stage} of {self.trace.last}, {record.name}")
            known: dict[int, Any] = {}
            for values in self._values.values():
                known.update(values)
            module: Module = record.module
            found = evaluate(module, self.inputs, known, self._results, self.sizes)
            self._once[stage] = frozenset(found)
            constants = {n.id for n in post_order(module.main) if isinstance(n, Constant)}
            found = {n: v for n, v in found.items() if n not in constants}
            self._values[stage] = found
        return found

    def value(self, stage: int, node: Expr) -> Any:
        """Returns the value of a stage's node, or None if it has none."""
        return node.data if isinstance(node, Constant) else self.values(stage).get(node.id)

    def once(self, stage: int) -> frozenset[int]:
        """Returns the nodes of a stage that have a single value in a run."""
        self.values(stage)
        return self._once[max(s for s in self.changed if s <= stage)]

    def pairs(self, before: int, after: int) -> dict[int, Expr]:
        """Returns the corresponding nodes of an earlier stage, for nodes of a stage."""
        found = self._pairs.get((before, after))
        if found is None:
            found = self._pairs[before, after] = _pairs(self.trace, before, after)
        return found

    def forget(self, keep: Sequence[int]) -> None:
        """Frees the values of all stages except some."""
        self._values = {s: v for s, v in self._values.items() if s in keep}

    def outputs(self, stage: int) -> dict[str, Any]:
        """Returns the outputs of a stage by name."""
        module: Module = self.trace.stages[stage].module
        body = module.main.body
        parts = body.fields if isinstance(body, Tuple) else (body,)
        found = [self.value(stage, p) for p in parts]
        if not isinstance(body, Tuple) and isinstance(body.type, TupleType):
            found = list(self.value(stage, body))
        return dict(zip(module.output_names, found, strict=True))


def first_wrong(stages: Stages, wrong: Callable[[int], bool]) -> tuple[int, int] | None:
    """Returns the last right stage and the next one, which is wrong; None if the last stage is
    right. The first stage is right by definition.
    """
    order = stages.changed
    low, high = 0, len(order) - 1
    if high == 0 or not wrong(order[high]):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if wrong(order[middle]):
            high = middle
        else:
            low = middle
        stages.forget([0, order[low], order[high]])
    return order[low], order[high]


def partings(stages: Stages, before: int, after: int) -> list[Parting]:
    """Returns every recomputed node of a stage that corresponds to a node of the previous stage, in
    the order of the graph, with its own error.
    """
    trace = stages.trace
    module: Module = trace.stages[after].module
    old_values = stages.values(before)
    olds: Mapping[int, Any] = trace.nodes(before)
    pairs = stages.pairs(before, after)
    kept = {n: v for n, v in old_values.items() if n in trace.nodes(after)}
    once = stages.once(after)
    outputs = {o.id for o in outputs_of(trace.stages[before].module)}
    found: list[Parting] = []

    def instead(node: Expr, value: Any) -> Any:
        old = pairs.get(node.id)
        if old is None or node.id in olds or node.id not in once:
            return value
        true = stages.value(before, old)
        if true is None:
            return value
        back = _relaid(value, node.type, old.type, true)
        there = _relaid(true, old.type, node.type, value)
        if back is None or there is None:
            if old.id in outputs:
                found.append(Parting(old, node, float("inf"), due_of(())))
            return value
        region = region_of(node, pairs, olds)
        due = due_of(_dtypes(node) | _dtypes(old), _narrow_around(region))
        found.append(Parting(old, node, error_of(true, back), due))
        return there

    args = [stages.inputs[name] for name in module.input_names]
    interpret_values(module.main, args, (), module, kept, None, instead, stages.sizes)
    return _in_order(module, [*_taken(stages, before, after), *found])


def _taken(stages: Stages, before: int, after: int) -> list[Parting]:
    """Returns the nodes that replaced others and existed before."""
    trace = stages.trace
    olds: Mapping[int, Any] = trace.nodes(before)
    found = []
    for link in trace.same_links(after):
        old, new = olds[link.old], olds.get(link.new)
        if new is None or isinstance(old, Function) or isinstance(new, Function):
            continue
        true, value = stages.value(before, old), stages.value(before, new)
        if true is None or value is None:
            continue
        back = _relaid(value, new.type, old.type, true)
        error = float("inf") if back is None else error_of(true, back)
        found.append(Parting(old, new, error, due_of(_dtypes(old))))
    return found


def _in_order(module: Module, found: list[Parting]) -> list[Parting]:
    order = {n.id: k for k, n in enumerate(post_order(module.main, into_functions=True))}
    return sorted(found, key=lambda p: order.get(p.new.id, 0))


def _dtypes(node: Any) -> set[str]:
    return set() if isinstance(node, Function) else dtypes_of(node.type)


def outputs_of(module: Module) -> tuple[Expr, ...]:
    """Returns the nodes of a module's outputs."""
    body = module.main.body
    return body.fields if isinstance(body, Tuple) else (body,)


def _pairs(trace: Trace, before: int, after: int) -> dict[int, Expr]:
    """Returns the corresponding nodes of an earlier stage, for nodes of a stage: by *same* links,
    as results of the same layers, and as outputs, even without a link.
    """
    olds: Mapping[int, Any] = trace.nodes(before)
    news: Mapping[int, Any] = trace.nodes(after)
    found: dict[int, Expr] = {}
    marked: dict[tuple[str, int], Expr] = {}
    for old in olds.values():
        for source in old.span.sources:
            if source.output is not None and not isinstance(old, Function):
                marked.setdefault((source.layer, source.output), old)
    for new in news.values():
        for source in new.span.sources:
            key = source.layer, source.output
            if source.output is not None and key in marked and not isinstance(new, Function):
                found.setdefault(new.id, marked[key])
    pairs = zip(
        outputs_of(trace.stages[before].module),
        outputs_of(trace.stages[after].module),
        strict=False,
    )
    found.update({new.id: old for old, new in pairs})
    for link in trace.same_links(after):
        old = olds[link.old]
        if not isinstance(old, Function) and not isinstance(news[link.new], Function):
            found[link.new] = old
    return found


def _relaid(value: Any, source: Type, target: Type, like: Any) -> Any:
    """Returns a value in another layout and dtype, or None if it cannot be converted."""
    if isinstance(target, TupleType):
        if not isinstance(source, TupleType) or len(source.fields) != len(target.fields):
            return None
        parts = [
            _relaid(*part) for part in zip(value, source.fields, target.fields, like, strict=True)
        ]
        return None if any(p is None for p in parts) else tuple(parts)
    if not isinstance(source, TensorType) or not isinstance(target, TensorType):
        return value
    try:
        array = np.asarray(relayout(value, source, target, like))
    except Exception:  # another rank, or a layout with other axes
        return None
    if array.shape != np.shape(like):
        return None
    with np.errstate(all="ignore"):
        return array.astype(to_numpy(target.dtype), copy=False)


# --- the replacement of a node -------------------------------------------------------


def region_of(new: Expr, pairs: Mapping[int, Expr], olds: Mapping[int, Any]) -> list[Expr]:
    """Returns a node and those behind it, up to the nodes that correspond to the previous stage;
    uses after their operands.
    """

    def behind(node: Expr) -> list[Expr]:
        children = (*node.children, *(f.body for f in inner_functions(node)))
        known = (pairs.keys(), olds.keys())
        return [
            c for c in children
            if not isinstance(c, Function) and not any(c.id in ids for ids in known)
        ]  # fmt: skip

    return walk.post_order((new,), behind)


def _narrow_around(region: Sequence[Expr]) -> set[str]:
    """Returns the narrow floats among the dtypes of a region and of what it reads."""
    return narrow_in(n for inner in region for n in (inner, *inner.children))


def is_rounding(stages: Stages, before: int, after: int, parting: Parting) -> bool:
    """Whether the error disappears when everything is computed in f32."""
    trace = stages.trace
    olds: Mapping[int, Any] = trace.nodes(before)
    pairs = stages.pairs(before, after)
    region = region_of(parting.new, pairs, olds)
    if not _narrow_around(region) or len(region) > _MOST_WIDE_NODES:
        return False
    params: list[Var] = []
    args: list[Any] = []
    made: dict[int, Expr] = {}

    def operand(node: Expr) -> Expr:
        if node.id not in made:
            old = pairs.get(node.id) or olds.get(node.id)
            true = stages.value(before, old) if old is not None else None
            if true is None or not isinstance(node.type, TensorType):
                raise ValueError("a value that the previous stage lacks")
            type_ = widened_type(node.type)
            value = _relaid(true, old.type, type_, stages.value(after, node))  # type: ignore[union-attr]
            if value is None:
                raise ValueError("a value of another shape")
            params.append(Var(f"x{len(params)}", type_))
            args.append(value)
            made[node.id] = params[-1]
        return made[node.id]

    try:
        inside = {n.id for n in region}
        for node in region:
            if isinstance(node, Constant):
                made[node.id] = Constant(widened(node.data), layout=node.tensor.layout)
                continue
            children = [
                c if isinstance(c, Function) else (made[c.id] if c.id in inside else operand(c))
                for c in node.children
            ]
            if isinstance(node, Call) and not inner_functions(node):
                made[node.id] = Call(node.op, children, Attrs(widened_attrs(node.attrs)))
            else:
                made[node.id] = rebuild(node, children)
        body = made[parting.new.id]
        function = Function(params, body)
        wide = interpret_values(function, args, {body.id})[body.id]
    except Exception:  # an operator that does not support f32 there
        return parting.error <= parting.due
    true = stages.value(before, parting.old)
    back = _relaid(wide, body.type, widened_type(parting.old.type), true)
    # Constants rounded by the pass itself cannot be widened again.
    held = [n for n in region if isinstance(n, Constant) and has_narrow(n.type)]
    if any(not np.isfinite(n.data.astype(np.float32)).all() for n in held):
        return True
    left = max(10 * due_of(()), 2 * due_of((), narrow_in(held)))
    return back is not None and error_of(true, back) <= max(left, parting.error / 4)


def traced_down(
    stages: Stages, before: int, after: int, old: Expr, new: Expr, due: float
) -> tuple[Expr, Expr]:
    """Returns the first two nodes at the same place in graphs of the same form that differ although
    their operands do not: for passes that record no lineage.
    """
    pairs, olds = stages.pairs(before, after), stages.trace.nodes(before)
    while True:
        alike = type(old) is type(new) and len(old.children) == len(new.children)
        if isinstance(old, Call) and isinstance(new, Call):
            alike = alike and old.op_name == new.op_name
        stand_for = [pairs.get(b.id) or olds.get(b.id) for b in new.children]
        turned = {a.id for a in old.children} == {o.id if o else 0 for o in stand_for}
        if not alike or turned:  # also: each operand is right, but in another's place
            return old, new
        parted = None
        for a, b in zip(old.children, new.children, strict=True):
            if isinstance(a, Function) or a is b or a.type != b.type:
                continue
            x, y = stages.value(before, a), stages.value(after, b)
            if x is not None and y is not None and error_of(x, y) > due:
                parted = a, b
                break
        if parted is None:
            return old, new
        old, new = parted
