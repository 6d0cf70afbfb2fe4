"""Variables of a TFLite model: resources, and tensors that operators change.

An import follows their values from operator to operator. The first value is an input of the module
with an initial value, and the last one an output: together they are the state of a session. A
resource that no call changes is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call, constant
from clew.frontends.limits import checked_size
from clew.frontends.lowering.captures import Captures
from clew.frontends.names import Symbols, UniqueNames, display
from clew.frontends.tflite.file.model import File, GraphInfo, TensorInfo
from clew.frontends.tflite.subgraphs import called
from clew.ir.dims import Dim, SymDim, is_unknown
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.interpret import interpreted
from clew.ir.state import State
from clew.ir.types import DTYPES, TensorType, to_numpy
from clew.support.errors import UnsupportedError

_SEPARATOR: Final = "\n"


@dataclass(frozen=True)
class Variable:
    """A variable: `place` identifies it, and `name` is shown to users."""

    name: str
    place: tuple[Hashable, Hashable]

    @property
    def is_resource(self) -> bool:
        """Whether it is a resource, as opposed to a tensor."""
        return isinstance(self.place[0], str)


def resource(container: str, name: str) -> Variable:
    """Returns the variable with a name in a container."""
    shown = f"{container}/{name}" if container else name
    return Variable(shown or "variable", (container, name))


def handle(variable: Variable) -> Constant:
    """Returns the value of a resource tensor, which identifies the variable."""
    text = np.empty((), to_numpy("str"))
    text[()] = _SEPARATOR.join(map(str, variable.place))
    return Constant(text)


def variable_of(value: NDArray[Any]) -> Variable:
    """Returns the variable of a resource tensor with a known value."""
    container, _, name = str(value.reshape(-1)[0]).partition(_SEPARATOR)
    return resource(container, name)


@dataclass
class Memory:
    """The values of variables at a point of the import.

    A branch or loop body has its own memory. A value that it reads from the `outer` one becomes a
    parameter of its function, by `captures`. Its own tensors that are variables live in it, because
    LiteRT clears them whenever a branch or a loop begins.
    """

    outer: Memory | None = None
    captures: Captures | None = None
    values: dict[Variable, Expr] = field(default_factory=dict)
    written: dict[Variable, None] = field(default_factory=dict)

    def find(self, variable: Variable) -> Expr | None:
        """Returns the value of a variable; None if nothing has read or written it."""
        found = self.values.get(variable)
        if found is not None or self.outer is None:
            return found
        outer = self.outer.find(variable)
        if outer is None or self.captures is None or isinstance(outer, Constant):
            return outer
        return self.captures.parameter(variable.name, outer)

    @property
    def root(self) -> Memory:
        """The outermost memory."""
        return self if self.outer is None else self.outer.root

    @property
    def written_resources(self) -> list[Variable]:
        """The resources that were written. They outlive a branch or loop body."""
        return [variable for variable in self.written if variable.is_resource]

    def write(self, variable: Variable, value: Expr) -> None:
        """Sets the next value of a variable."""
        self.values[variable] = value
        self.written[variable] = None


class Variables:
    """The variables of a model, if any `exist`. `memory` is that of the main graph. `starts` has
    the initial values of tensors that are variables of other subgraphs.
    """

    def __init__(self, file: File, graph: int, builder: GraphBuilder, names: UniqueNames) -> None:
        self._builder = builder
        self._names = names
        self._symbols = Symbols()
        self._assigned = _assigned(file, graph)
        self.exist: Final = any(
            any(tensor.is_variable for tensor in each.tensors)
            or any(operator.op == "VAR_HANDLE" for operator in each.operators)
            for each in called(file, graph)
        )
        self._initial: dict[Variable, NDArray[Any]] = {}
        self._initialized: set[int] = set()
        self._params: dict[Variable, tuple[Var, NDArray[Any]]] = {}
        self.memory: Final = Memory()
        self.starts: Final[dict[Variable, Expr]] = {}

    def read(self, memory: Memory, variable: Variable, like: TensorInfo) -> Expr:
        """Returns the value of a variable at this point; `like` is a tensor of its type."""
        if memory.find(variable) is None:
            initial = self._initial.get(variable)
            if initial is None:
                initial = self._zeros(variable, like)
            if not variable.is_resource and memory.outer is not None:
                memory.values[variable] = self.starts[variable] = Constant(initial)
            elif memory.root is self.memory:
                self.memory.values[variable] = self._first(variable, initial, like)
            else:
                memory.root.values[variable] = Constant(initial)
        found = memory.find(variable)
        assert found is not None
        return found

    def with_rows(self, memory: Memory, variable: Variable, count: Dim) -> Expr | None:
        """Returns the value of a variable with a free number of rows, whose first values are equal;
        None within a branch or a loop if the number is known only there.
        """
        value = memory.values[variable]
        if value.tensor.shape[:1] == (count,):
            return value
        if memory.outer is not None:
            return None if is_unknown(count) else self._start_of_rows(memory, variable, count)
        var, initial = self._params[variable]
        if value is var:
            row = _row(initial)
            type_ = TensorType((count, *row.shape[1:]), var.tensor.dtype)
            self.memory.values[variable] = self._param(variable, var.name, type_, row)
        return self.memory.values[variable]

    def _start_of_rows(self, memory: Memory, variable: Variable, count: Dim) -> Expr | None:
        """Returns the initial value of a variable in a branch or a loop; None if it has changed."""
        start = self.starts.get(variable)
        if not isinstance(start, Constant) or memory.values[variable] is not start:
            return None
        row = _row(start.data)
        rows = call("broadcast_to", constant(row), shape=(count, *row.shape[1:]))
        memory.values[variable] = self.starts[variable] = rows
        return rows

    def define(self, variable: Variable, type_: TensorType) -> None:
        """Gives a variable that nothing has read yet its value before a call."""
        initial = self._initial.get(variable)
        if initial is None:
            sizes = tuple(size if isinstance(size, int) else 0 for size in type_.shape)
            like = TensorInfo(variable.name, type_.dtype, sizes, None, None, False)
            initial = self._zeros(variable, like)
        name = self._names.claim(variable.name)
        self.memory.values[variable] = self._param(variable, name, type_, initial)

    def _first(self, variable: Variable, initial: NDArray[Any], like: TensorInfo) -> Expr:
        """Returns the value of a variable before a call."""
        if not like.is_variable and not self._changes(variable):
            return self._builder.constant(variable.name, lambda: initial, key=variable)
        name = self._names.claim(variable.name or "state")
        shape: list[Dim] = list(initial.shape)
        if len(like.shape) == len(shape):
            for axis, size in enumerate(like.shape):
                if size is None:
                    shape[axis] = SymDim.symbol(self._symbols.fresh(f"{name}_{axis}"))
        return self._param(variable, name, TensorType(tuple(shape), like.dtype), initial)

    def _zeros(self, variable: Variable, like: TensorInfo) -> NDArray[Any]:
        """Returns the initial value of a variable: zero, or the code of zero for 8-bit codes.

        Errors: U004 for elements without a zero, M006 for too many.
        """
        what = f"variable {display(variable.name)!r}"
        if like.dtype not in DTYPES or like.dtype == "str":
            raise UnsupportedError("U004", f"{what} has elements of type {like.dtype}")
        shape = tuple(size or 0 for size in like.shape)
        checked_size(shape, like.dtype, self._builder.budgets, what)
        found = np.zeros(shape, to_numpy(like.dtype))
        if like.quantization is not None and like.dtype == "i8":
            found += like.quantization.zero[0].astype(np.int8)
        return found

    def _changes(self, variable: Variable) -> bool:
        return self._assigned is None or variable in self._assigned

    def _param(
        self, variable: Variable, name: str, type_: TensorType, initial: NDArray[Any]
    ) -> Var:
        var = self._builder.variable(name, type_)
        self._params[variable] = var, initial
        return var

    def initialize(self, graph: int, run: Callable[[Memory], object]) -> bool:
        """Imports and evaluates a subgraph that initializes variables, once. Returns whether none
        of the variables had a value before.
        """
        if graph in self._initialized:
            return True
        self._initialized.add(graph)
        memory = Memory()
        run(memory)
        for variable in memory.written:
            if variable in self.memory.values:
                return False
            expr = memory.values[variable]
            (value,) = interpreted(Function([], Tuple([expr])))([], {})
            self._initial[variable] = np.asarray(value)
        return True

    def states(self, outputs: UniqueNames) -> Iterator[tuple[Var, Expr, State]]:
        """Yields the states: the parameter, the value after a call, and the names of both.
        `outputs` claims the names of the latter.
        """
        for variable in self.memory.written:
            if variable not in self._params:
                last = self.memory.values[variable]
                self.define(variable, last.tensor)
                self.memory.values[variable] = last
        for variable, (var, initial) in self._params.items():
            output = outputs.claim(f"{var.name}_new")
            yield var, self.memory.values[variable], State(var.name, output, initial)


def _row(initial: NDArray[Any]) -> NDArray[Any]:
    """Returns the first row of an initial value, which all rows equal."""
    return initial[:1] if initial.ndim > 1 else initial[None]


def _assigned(file: File, number: int) -> set[Variable] | None:
    """Returns the resources that calls of a subgraph may change; None if these may be any."""
    found: set[Variable] = set()
    for graph in called(file, number):
        own = {
            operator.outputs[0]: _named(operator.options)
            for operator in graph.operators
            if operator.op == "VAR_HANDLE" and operator.outputs
        }
        for operator in graph.operators:
            if operator.op != "ASSIGN_VARIABLE":
                continue
            if not operator.inputs or operator.inputs[0] not in own:
                return None
            found.add(own[operator.inputs[0]])
    return found


def _named(options: Any) -> Variable:
    return resource(str(options.get("container", "")), str(options.get("shared_name", "")))


def variable_tensor(graph: GraphInfo, number: int, index: int) -> Variable:
    """Returns the variable that a tensor is."""
    return Variable(graph.tensors[index].name or f"state_{index}", (number, index))
