"""What a converter sees of the layer that it imports: operands as expressions, attributes, values
that are known before the run, and the errors to raise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final, Self

from numpy.typing import NDArray

from clew.frontends.builder import GraphBuilder
from clew.frontends.names import display
from clew.ir.dims import Dim, SymDim, at_least, is_unknown, substitute
from clew.ir.expr import Expr, TupleGetItem
from clew.ir.types import TensorType, TupleType
from clew.ir.values import is_symbolic
from clew.ops.registry import Op
from clew.support.errors import Hint, ModelError, UnsupportedError

INVALID: Final = "the model is invalid: export it again"
FIX_SHAPES: Final = Hint(
    "give fixed input shapes (inputs={...}), or fold it when exporting",
    cli="give fixed input shapes (--shape NAME=1,3,224,224), or fold it when exporting",
    page="give the input shapes when compiling it, or fold it when exporting",
)


class LayerBase(ABC):
    """What the layers of all formats have in common: a name, unique in the model, and an
    operator.
    """

    def __init__(self, name: str, op: str, builder: GraphBuilder) -> None:
        self.name = name
        self.op = op
        self.builder = builder

    @abstractmethod
    def unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        """Returns the error for a valid but unsupported form of the operator."""

    @staticmethod
    def results_of(op: Op, operands: Sequence[Expr], attributes: Mapping[str, Any]) -> list[Expr]:
        """Returns the results of an operator that a user bound to the layer's."""
        call = op(*operands, **attributes)
        if isinstance(call.type, TupleType):
            return [TupleGetItem(call, n) for n in range(len(call.type.fields))]
        return [call]


class Layer(LayerBase):
    """A node of a file: operands by position, and attributes by name.

    `version` is the operator's version, `outputs` names the results in use, and `waits` is set if
    the layer needs data-dependent sizes. Methods that read the node raise M012 if it is invalid.
    """

    def __init__(
        self,
        name: str,
        op: str,
        inputs: Sequence[Expr | None],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
        builder: GraphBuilder,
        version: int = 1,
    ) -> None:
        super().__init__(name, op, builder)
        self.version = version
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.given = attributes
        self.waits = False

    def wrong(self, what: str) -> ModelError:
        """Returns the error for a node that violates its operator's schema."""
        return ModelError("M012", f"{display(self.op)} {what}", hint=INVALID)

    def unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        """Returns the error for a valid but unsupported form of the operator."""
        return UnsupportedError("U005", f"{display(self.op)}: {what}", hint=hint)

    def unknown(self, what: str) -> UnsupportedError:
        """Returns the error for a value that is unknown before the run."""
        return UnsupportedError(
            "U002", f"{self.op}: {what} is unknown before the run", hint=FIX_SHAPES
        )

    def open_size(self, what: str, *sizes: Dim) -> UnsupportedError:
        """Returns the error for facts that depend on sizes of the call, or of the data: the layer
        then waits for the run.
        """
        if any(map(is_unknown, sizes)):
            self.waits = True
        return self.unknown(what)

    def is_above_one(self, size: Dim) -> bool:
        """Whether a size is certainly more than 1."""
        if self.builder.without_ones and isinstance(size, SymDim):
            own = (name for name in size.symbols if not name.startswith("?"))
            size = substitute(size, {name: SymDim.symbol(name) + 1 for name in own})
        return at_least(size, 2)

    # --- inputs ---

    def with_inputs(self, *inputs: Expr | None) -> Self:
        """Returns the layer with other inputs, to pass to another converter."""
        made = copy(self)
        made.inputs = inputs
        return made

    def input(self, index: int) -> Expr:
        """Returns a required input."""
        found = self.optional(index)
        if found is None:
            raise self.wrong(f"needs input {index}")
        return found

    def optional(self, index: int) -> Expr | None:
        """Returns an input, None if the model omits it."""
        return self.inputs[index] if index < len(self.inputs) else None

    def present(self) -> list[Expr]:
        """Returns all inputs of a variadic operator."""
        return [self.input(n) for n in range(len(self.inputs))]

    def type(self, index: int) -> TensorType:
        """Returns an input's type.

        Errors: U004 if it is not a tensor.
        """
        return self.type_of(self.input(index))

    def type_of(self, expr: Expr) -> TensorType:
        """Returns an expression's tensor type.

        Errors: U004 if it is not a tensor.
        """
        if not isinstance(expr.type, TensorType):
            raise UnsupportedError("U004", f"{self.op} of a {expr.type}")
        return expr.type

    def rank(self, index: int = 0) -> int:
        """Returns the number of axes of an input."""
        return self.type(index).rank

    def wants(self, output: int) -> bool:
        """Whether the model uses an output."""
        return output < len(self.outputs) and bool(self.outputs[output])

    # --- values that decide types ---

    def known(self, index: int) -> NDArray[Any] | None:
        """Returns an input's value if it is known before the run."""
        expr = self.optional(index)
        return None if expr is None else self.known_value(expr)

    def known_value(self, expr: Expr) -> NDArray[Any] | None:
        """Returns the value of an expression if it is known before the run."""
        found = self.builder.known.get(expr)
        if found is None or is_symbolic(found):
            self.builder.asked.unknown(expr)
        return found

    def value(self, index: int, what: str) -> NDArray[Any]:
        """Returns an input's value.

        Errors: U002 if it is known only at run time.
        """
        self.input(index)
        found = self.known(index)
        if found is None:
            raise self.unknown(what)
        return found

    def known_one(self, index: int) -> Any:
        """Returns the single element of an input, None if the input is absent or unknown.

        Errors: M012 for another number of elements.
        """
        found = self.known(index)
        if found is None:
            return None
        if found.size != 1:
            raise self.wrong(f"takes one number as input {index}, got {found.size}")
        return found.reshape(-1).tolist()[0]

    def one(self, index: int, what: str) -> Any:
        """Returns the single element of an input: a number, or a symbolic dimension.

        Errors: U002 if it is known only at run time, M012 for another number of elements.
        """
        self.value(index, what)
        return self.known_one(index)

    def one_int(self, index: int, what: str) -> int:
        """Returns the single element of an input as a plain int.

        Errors: U002 if it is known only at run time, M012 for another number of elements.
        """
        self.one(index, what)
        return self.numbers(index, what)[0]

    def dims(self, index: int, what: str) -> tuple[Dim, ...]:
        """Returns the sizes in an input: ints, or symbolic dimensions.

        Errors: U002 if they are known only at run time.
        """
        return tuple(
            item if isinstance(item, SymDim) else int(item)
            for item in self.value(index, what).reshape(-1).tolist()
        )

    def numbers(self, index: int, what: str) -> tuple[int, ...]:
        """Returns the elements of an input as plain ints.

        Errors: U002 if they are known only at run time.
        """
        dims = self.dims(index, what)
        for dim in dims:
            if isinstance(dim, SymDim):
                raise UnsupportedError("U002", f"{self.op}: {what} depends on the size {dim}")
        return dims  # type: ignore[return-value]

    # --- attributes ---

    def has(self, name: str) -> bool:
        """Whether the model sets an attribute."""
        return name in self.given

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an integer attribute."""
        return int(self._given(name, default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Returns an integer attribute that is true or false."""
        return bool(self.integer(name, None if default is None else int(default)))

    def real(self, name: str, default: float | None = None) -> float:
        """Returns a float attribute."""
        return float(self._given(name, default))

    def text(self, name: str, default: str = "") -> str:
        """Returns a text attribute."""
        return str(self._given(name, default))

    def integers(self, name: str, default: Sequence[int] | None = ()) -> Any:
        """Returns a list of integers as a tuple, or the default."""
        found = self.given.get(name, default)
        return found if found is None else tuple(map(int, found))

    def _given(self, name: str, default: Any) -> Any:
        found = self.given.get(name, default)
        if found is None:
            raise self.wrong(f"needs the attribute {name!r}")
        return found

    def axis(self, name: str = "axis", *, rank: int | None = None) -> int:
        """Returns an axis attribute, counted from the front."""
        return self.positive(self.integer(name), self.rank() if rank is None else rank)

    def positive(self, axis: int, rank: int) -> int:
        """Returns an axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.wrong(f"axis {axis} is out of range for rank {rank}")
        return axis % rank
