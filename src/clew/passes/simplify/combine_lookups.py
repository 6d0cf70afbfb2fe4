"""CombineLookups: replaces lookups in parts of the same texts by one lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from clew.ir.dims import Dim, at_least
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.text_arrays import TEXT


@dataclass(frozen=True)
class CombineLookups(Pass):
    """Combines lookups that map texts in parts of one tensor to numbers. One lookup first maps each
    text to its position among the keys of all lookups. Kernels then select the parts of these
    positions and look up the values. Models of tabular data encode each text column separately, and
    lookups and selections of texts run on the host, one after the other.

    Before: `%1 = gather(%x, 0, axis=1)`, `%2 = text.lookup(%1, keys, values, -1)`, and likewise for
        other columns
    After:  `%1 = text.lookup(%x, all_keys, [0, 1, ...], n)`, `%2 = gather(%1, 0, axis=1)`,
        `%3 = gather(values_and_default, %2)`, and likewise for other columns

    Preconditions: keys and values are constants. Non-goals: lookups whose values are texts, and
    parts that together have fewer elements than the tensor.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        nodes = post_order([function for _, function in module], into_functions=True)
        if sum(_tables_of(node) is not None for node in nodes) < 2:
            return module
        return _Combiner().rewrite_module(module)


class _Tables(NamedTuple):
    """The constants of a lookup."""

    keys: Sequence[str]
    values: np.ndarray
    default: np.ndarray


class _Combiner(Rewriter):
    of_function: ClassVar[tuple[str, ...]] = ("_groups", "_numbers")

    def __init__(self) -> None:
        super().__init__()
        # By lookup: all lookups in the same texts, and the texts.
        self._groups: Mapping[int, tuple[Sequence[Call], Expr]] = {}
        # By texts: the position of each key, and the positions of the texts.
        self._numbers: dict[int, tuple[dict[str, int], Expr]] = {}

    def enter(self, function: Function) -> None:
        by_source: dict[int, tuple[list[Call], Expr]] = {}
        for node in post_order(function.body):
            if _tables_of(node) is not None:
                assert isinstance(node, Call)
                source = _source(node.args[0])
                by_source.setdefault(source.id, ([], source))[0].append(node)
        self._groups, self._numbers = {}, {}
        for calls, source in by_source.values():
            parts: Dim = sum([call.args[0].tensor.size for call in calls], start=0)
            if len(calls) > 1 and at_least(parts - source.tensor.size):
                self._groups.update({call.id: (calls, source) for call in calls})

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        group = self._groups.get(old.id)
        if group is None:
            return new
        calls, source = group
        with self.covers(*calls):
            if source.id not in self._numbers:
                self._numbers[source.id] = self._numbered(calls, source)
            places, numbers = self._numbers[source.id]
        with self.covers(old):
            tables = _tables_of(old)
            assert tables is not None
            values = np.full(len(places) + 1, tables.default, tables.values.dtype)
            values[[places[key] for key in tables.keys]] = tables.values
            part = _over(old.args[0], source, numbers)
            return get_op("gather")(Constant(values), part, axis=0)

    def _numbered(self, calls: Sequence[Call], source: Expr) -> tuple[dict[str, int], Expr]:
        """Returns the position of each key, and the positions of the texts among the keys."""
        tables = [found for call in calls if (found := _tables_of(call)) is not None]
        keys = list(dict.fromkeys(key for found in tables for key in found.keys))
        names = np.empty(len(keys), TEXT)
        names[:] = keys
        numbers = get_op("text.lookup")(
            self._visited(source),
            Constant(names),
            Constant(np.arange(len(keys))),
            Constant(np.asarray(len(keys))),
        )
        return {key: n for n, key in enumerate(keys)}, numbers


def _tables_of(node: Expr) -> _Tables | None:
    """Returns the constants of a lookup that maps texts to numbers; None for other nodes."""
    if not isinstance(node, Call) or not isinstance(node.op, Op) or node.op.name != "text.lookup":
        return None
    keys, values, default = node.args[1:]
    if not all(isinstance(table, Constant) for table in (keys, values, default)):
        return None
    assert isinstance(keys, Constant)
    assert isinstance(values, Constant)
    assert isinstance(default, Constant)
    if keys.tensor.dtype != "str" or values.tensor.dtype == "str" or values.tensor.rank != 1:
        return None
    return _Tables(keys.data.tolist(), values.data, default.data)


def _source(texts: Expr) -> Expr:
    """Returns the tensor of texts from which `texts` are selected."""
    while _is_part(texts):
        texts = texts.children[0]
    return texts


def _is_part(expr: Expr) -> bool:
    """Whether a value consists of elements of its first operand."""
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or not expr.args:
        return False
    types = [arg.type for arg in expr.args]
    tensors = [t for t in types if isinstance(t, TensorType)]
    if len(tensors) < len(types) or not isinstance(expr.type, TensorType) or expr.op.host:
        return False
    numbers = [t.with_(dtype="i64") if t.dtype == "str" else t for t in tensors]
    return expr.op.moved_operands(numbers, expr.attrs) == (0,)


def _over(part: Expr, source: Expr, numbers: Expr) -> Expr:
    """Returns the part of `numbers` at the positions of a part of the texts `source`."""
    if part is source:
        return numbers
    assert isinstance(part, Call)
    first = _over(part.args[0], source, numbers)
    return part.with_args([first, *part.args[1:]])
