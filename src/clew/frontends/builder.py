"""What an import builds, whatever the format: a module of the graph IR with sources.

A reader walks its file and decodes it. What it finds it gives to a `GraphBuilder`, which knows what
all formats have in common: inputs and constants with their sources, marks on the results of layers,
what became of each layer, values that are known before the run and those that were needed but are
not, values that carry data-dependent sizes, and the budgets (`docs/importing.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from clew.frontends.asked import Asked
from clew.frontends.building import call
from clew.frontends.limits import checked_size, over
from clew.frontends.names import display
from clew.ir.expr import Constant, Expr, Function, Tuple, Var, mark_results
from clew.ir.late_sizes import Anchors, sizes_told
from clew.ir.module import Module
from clew.ir.types import TensorType, TupleType, Type, bits
from clew.ir.values import KnownValues, is_symbolic
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.support.budgets import Budgets, current
from clew.support.dataclass import dataclass
from clew.support.errors import ClewError
from clew.trace.lineage import building
from clew.trace.span import Source, Span

KNOWN: Final = "known at import"
UNUSED: Final = "result not used"
"""Reasons why a layer has no node."""


@dataclass(frozen=True)
class _Layer:
    """A layer that was imported: its values, and the reason if no node is left of it."""

    values: Sequence[Expr]
    reason: str


@dataclass(frozen=True)
class Failure:
    """A layer that failed: whether operands have symbolic sizes, and the concrete sizes."""

    symbolic: bool
    sizes: frozenset[int]


class GraphBuilder:
    """Builds one module. `frontend` is the name of the reader, which sources carry.

    `known` has the values that are known before the run, and `asked` those that converters needed
    although they are not. `carriers` has, for a data-dependent size, a value that has it.
    `without_ones` says that the module is for calls in which no named size is 1.
    """

    def __init__(
        self, frontend: str, budgets: Budgets | None = None, *, without_ones: bool = False
    ) -> None:
        self.frontend: Final = frontend
        self.without_ones: Final = without_ones
        self.budgets: Final = budgets or current()
        self.known: Final = KnownValues()
        self.asked: Final = Asked(self.known)
        self.params: Final[list[Var]] = []
        self.carriers: Final[dict[str, Expr]] = {}
        self._constants: dict[Hashable, Constant] = {}
        self._layers: dict[Source, _Layer] = {}
        self._omitted: list[tuple[str, str, str]] = []
        self._started = 0
        self._name_chars = 0
        self._value_bytes = 0
        self._failed: Failure | None = None

    # --- inputs and constants ---

    def input_span(self, name: str) -> Span:
        """Returns the span of an input of the model."""
        return Span([Source(name, frontend=self.frontend, kind="input")])

    def input(self, name: str, type_: Type) -> Var:
        """Returns an input of the model, the next parameter of the module."""
        var = self.variable(name, type_)
        self.params.append(var)
        return var

    def variable(self, name: str, type_: Type) -> Var:
        """Returns an input that the reader itself adds to `params`."""
        return Var(name, type_, span=self.input_span(name))

    @contextmanager
    def parameter(self, name: str) -> Iterator[None]:
        """A context in which constants that are made belong to a parameter of the model."""
        with building(Span([Source(name, frontend=self.frontend, kind="parameter")])):
            yield

    def constant(
        self, name: str, read: Callable[[], NDArray[Any]], key: Hashable | None = None
    ) -> Constant:
        """Returns a parameter of the model. Parameters with the same `key` are one constant, which
        is read once.
        """
        found = None if key is None else self._constants.get(key)
        if found is None:
            with self.parameter(name):
                found = Constant(read(), name=name)
            if key is not None:
                self._constants[key] = found
        return found

    # --- layers ---

    @contextmanager
    def layer(self, source: Source, *, marked: bool = True) -> Iterator[Results]:
        """A context in which nodes that are built belong to a layer, with its results to bind.
        Without `marked`, the layer's results are steps of another one, which marks its own.
        """
        with building(Span([source])):
            yield Results(self, source, marked)

    def account(self, source: Source, values: Sequence[Expr], reason: str = "") -> None:
        """Records a layer and its values, in case no node is left of it. Without a `reason`, the
        values tell it.
        """
        self._layers[source] = _Layer(values, reason)

    def omit(self, layer: str, op: str, reason: str) -> None:
        """Records a layer that has no node."""
        self._omitted.append((layer, op, reason))

    @property
    def layer_names(self) -> set[str]:
        """The names of the layers so far."""
        return {source.layer for source in self._layers}

    # --- budgets ---

    @property
    def started(self) -> int:
        """The number of layers so far; those of graphs that are read again count each time."""
        return self._started

    def start_layer(self) -> None:
        """Counts a layer. Errors: M009 for too many."""
        self._started += 1
        if self._started > self.budgets.nodes:
            what = "nodes of the model, counting loop bodies each time they are read"
            raise over("M009", what, self._started, "nodes", self.budgets.nodes)
        self.asked.next_layer()

    def fail(self, operands: Sequence[Expr | None]) -> None:
        """Records the operands of a layer that failed; those of the first one are kept."""
        if self._failed is None:
            types = [x.type for x in operands if x is not None]
            shapes = [t.shape for t in types if isinstance(t, TensorType)]
            sizes = frozenset(d for s in shapes for d in s if isinstance(d, int))
            self._failed = Failure(any(map(self._is_open, operands)), sizes)

    def _is_open(self, expr: Expr | None) -> bool:
        """Whether a value's type, or its known value, has symbolic sizes."""
        if expr is None:
            return False
        known = self.known.get(expr)
        if known is not None and is_symbolic(known):
            return True
        return not isinstance(expr.type, TensorType) or not expr.type.is_static

    @property
    def failed(self) -> Failure | None:
        """What is known of the layer that failed first; None if none did."""
        return self._failed

    def count_name(self, name: str) -> None:
        """Counts the characters of a layer's name. Errors: M030 for too many."""
        self._name_chars += len(name)
        most = self.budgets.text_chars
        if self._name_chars > most:
            raise over("M030", "characters of names", self._name_chars, "text_chars", most)

    def count_value(self, name: str, type_: Type) -> None:
        """Counts the bytes of a value of known shape. Errors: M006, M030 for too many."""
        if isinstance(type_, TensorType) and type_.is_static:
            what = f"value {display(name)!r}"
            size = checked_size(type_.concrete, type_.dtype, self.budgets, what)
            self._value_bytes += size * bits(type_.dtype) // 8
            most = self.budgets.total_bytes
            if self._value_bytes > most:
                what = f"bytes of all values up to {display(name)!r}"
                raise over("M030", what, self._value_bytes, "total_bytes", most)

    # --- the module ---

    def module(
        self, outputs: Sequence[Expr], names: Sequence[str], attrs: Mapping[str, Any]
    ) -> Module:
        """Returns the module with these outputs, and further attributes of its main function.
        Data-dependent sizes are defined where they are used.
        """
        body: Expr = Tuple(outputs, span=Span())
        if self.carriers:
            anchors = Anchors(self.carriers, get_op("sized"))
            body = anchors.rewrite_function(Function(self.params, body, span=Span())).body
        own = {"outputs": tuple(names), "eliminated": self._eliminated(body)}
        return Module({"main": Function(self.params, body, {**own, **attrs}, span=Span())})

    def _eliminated(self, body: Expr) -> tuple[tuple[str, str, str], ...]:
        """Returns layers that no part of the graph serves: name, operator, and reason."""
        alive = {
            source.without_output()
            for node in post_order(body, into_functions=True)
            for source in node.span.sources
        }
        gone = (
            (source.layer, source.op, layer.reason or self._reason(layer.values))
            for source, layer in self._layers.items()
            if source not in alive
        )
        return (*gone, *self._omitted)

    def _reason(self, values: Sequence[Expr]) -> str:
        known = bool(values) and all(self.known.get(value) is not None for value in values)
        return KNOWN if known else UNUSED


class Results:
    """The results of a layer that is being imported."""

    def __init__(self, builder: GraphBuilder, source: Source, marked: bool) -> None:
        self._builder = builder
        self._source = source
        self._marked = marked
        self._bound: set[int] = set()
        self._start = Var(source.layer, TupleType(()))  # nodes of the layer have larger ids

    def bind(self, index: int, value: Expr, name: str = "") -> Expr:
        """Returns a value as a result of the layer, marked as such. One that the layer only passes
        on becomes an `identity`. With a `name`, it counts in the budget of all values.

        Errors: M006, M030.
        """
        passed_on = value.id < self._start.id or value.id in self._bound
        if passed_on and isinstance(value.type, TensorType):
            value = call("identity", value)
        if name:
            self._builder.count_value(name, value.type)
        if self._marked:
            mark_results(value, Span([replace(self._source, output=index)]))
        self._bound.add(value.id)
        for size in sizes_told([value.type]):
            self._builder.carriers.setdefault(size, value)
        return value


@dataclass(frozen=True)
class Fault:
    """Python errors of a converter, and the coded error that they become."""

    errors: tuple[type[Exception], ...]
    code: Callable[[str, Exception], ClewError]


@contextmanager
def coded(op: str, faults: Sequence[Fault]) -> Iterator[None]:
    """Gives codes to the Python errors of an operator's converter. Converters report invalid values
    where they can; this handles unforeseen ones.
    """
    try:
        yield
    except ClewError:
        raise
    except Exception as error:
        for fault in faults:
            if isinstance(error, fault.errors):
                raise fault.code(op, error) from error
        raise
