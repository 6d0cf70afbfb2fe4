"""One program that evaluates every choice of quantized layers: each site has a switch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.backends.compile_options import CompileOptions
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, is_float
from clew.ops.registry import get_op
from clew.quantization.feeds import Feed
from clew.quantization.observe import compiled
from clew.quantization.parameters import Parameters
from clew.quantization.sums import Addend, active
from clew.trace.span import Span

Array = NDArray[Any]
Outputs = list[Array]


class Simulation:
    """A model in which each site computes both its float and its quantized result and gives either,
    by an input. It is compiled once. Quantized results come from kernels of integers, as in the
    quantized model. The operands of a sum have the switch of the product that it belongs to. Max
    pools are left unchanged: they compute the same on rounded operands.
    """

    def __init__(
        self,
        module: Module,
        parameters: Sequence[Parameters],
        addends: Sequence[Addend],
        feeds: Sequence[Feed],
        options: CompileOptions,
        say: Callable[[str], None],
    ) -> None:
        self.output_names = module.output_names
        self.names = [p.site.name for p in parameters]
        self._feeds, self._say = feeds, say
        switched = _Switched(parameters, addends)
        changed = switched.rewrite_module(module)
        switches = [switched.switches[p.site.result.id] for p in parameters]
        main = changed.main
        body = main.body if isinstance(main.body, Tuple) else Tuple([main.body], span=Span())
        floats = [f for f in body.fields if _is_float(f)]
        self.has_floats = bool(floats)
        names = tuple(f"output{n}" for n in range(len(body.fields)))
        function = Function([*main.params, *switches], body, {"outputs": names}, span=Span())
        self._model = compiled(changed.with_functions({"main": function}), options)
        self._kept = [n for n, f in enumerate(body.fields) if _is_float(f)]
        self._exact: list[Outputs] | None = None

    def runs(self, quantized: Collection[str], count: int | None = None) -> Iterator[Outputs]:
        """Yields the outputs for each sample (or the first `count`), given the sites that are
        quantized.
        """
        flags = [np.float32(name in quantized) for name in self.names]
        for feed in self._feeds[:count]:
            switches = {f"switch:{n}": flag for n, flag in enumerate(flags)}
            results = self._model.run({**feed, **switches})
            yield [np.array(r) for r in results.values()]

    @property
    def exact(self) -> list[Outputs]:
        """The outputs of the float model for each sample."""
        if self._exact is None:
            self._say("float outputs")
            self._exact = list(self.runs(()))
        return self._exact

    def floats(self, outputs: Outputs) -> Outputs:
        """Returns the outputs of floats."""
        return [outputs[n].astype(np.float64) for n in self._kept]

    def error(self, quantized: Collection[str]) -> float:
        """Returns the error of the outputs over all samples: the root of the sum of squared
        differences over that of squares, of the output where it is largest.
        """
        squares = np.zeros(len(self._kept))
        lengths = np.full(len(self._kept), np.finfo(np.float64).tiny)
        for found, exact in zip(self.runs(quantized), self.exact, strict=True):
            pairs = list(zip(self.floats(found), self.floats(exact), strict=True))
            squares += [np.sum((a - b) ** 2) for a, b in pairs]
            lengths += [np.sum(b**2) for _, b in pairs]
        return math.sqrt(float(np.max(squares / lengths)))


def _is_float(value: Expr) -> bool:
    return isinstance(value.type, TensorType) and is_float(value.tensor.dtype)


class _Switched(Rewriter):
    def __init__(self, parameters: Sequence[Parameters], addends: Sequence[Addend]) -> None:
        super().__init__()
        self._addends: dict[int, list[Addend]] = {}
        for a in active(addends, parameters):
            self._addends.setdefault(a.sum.call.id, []).append(a)
        self._by_result = {p.site.result.id: p for p in parameters}
        self.switches: dict[int, Var] = {}
        for n, p in enumerate(parameters):
            var = Var(f"switch:{n}", TensorType((), "f32"), span=Span())
            self.switches[p.site.result.id] = var

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.id in self._addends:
            return self._sum(old, new)
        p = self._by_result.get(old.id)
        if p is None:
            return new
        product = self.memo[p.site.call.id] if p.site.bias is not None else new
        assert isinstance(product, Call)
        with self.covers(old):
            operands = [p.quantized_data(product.args[0]), p.quantized_weight()]
            made: Expr = Call(product.op, operands, product.attrs)
            bias = p.quantized_bias()
            if bias is not None:
                made = get_op("add")(made, bias)
            return _chosen(made, new, self.switches[old.id])

    def _sum(self, old: Call, new: Call) -> Expr:
        with self.covers(old):
            operands = list(new.args)
            for a in self._addends[old.id]:
                place = [operand.id for operand in old.args].index(a.value.id)
                value = operands[place]
                switch = self.switches[a.product.result.id]
                operands[place] = _chosen(a.quantized(value), value, switch)
            return Call(new.op, operands, new.attrs)


def _chosen(quantized: Expr, exact: Expr, switch: Expr) -> Expr:
    """Returns the quantized value where the switch is 1, and the exact one where it is 0."""
    rest = get_op("subtract")(Constant(np.float32(1)), switch)
    return get_op("add")(get_op("multiply")(quantized, switch), get_op("multiply")(exact, rest))
