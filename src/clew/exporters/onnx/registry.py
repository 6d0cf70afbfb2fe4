"""Rules that write operators as ONNX nodes, one per operator.

```python
@writes("nn.leaky_relu")
def leaky_relu(w: Writing) -> str:
    return w.emit("LeakyRelu", w.inputs[0], alpha=w.real("alpha"))
```

A rule returns the names of the call's results. It refuses a call that has no ONNX form of the same
meaning with `w.refuse(reason)`. Rules need not check dtypes: `emit` compares them with the
standard's schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.exporters.onnx.builder import Array, GraphBuilder
from clew.ir.expr import Call
from clew.ir.types import to_numpy
from clew.ops.rules import RuledCall, Rules

Rule: TypeAlias = "Callable[[Writing], str | tuple[str, ...]]"

_RULES: Final[Rules[Rule]] = Rules()


def writes(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: registers the rule of operators."""
    return _RULES.register(*names)


def rule_of(name: str) -> Rule | None:
    """Returns the rule of an operator, None if it has none."""
    return _RULES.get(name)


def written_operators() -> frozenset[str]:
    """Returns the names of the operators with a rule."""
    return frozenset(_RULES)


class Writing(RuledCall):
    """A call that a rule writes, with the names of its arguments' values and a builder of nodes."""

    def __init__(
        self, call: Call, inputs: Sequence[str], builder: GraphBuilder, label: str
    ) -> None:
        super().__init__(call)
        self.inputs = tuple(inputs)
        self._builder = builder
        self._label = label

    def real(self, name: str) -> float:
        """Returns a number that an attribute of ONNX holds, which is an f32."""
        value = float(self.attrs[name])
        if self.types[0].dtype == "f64" and float(np.float32(value)) != value:
            self.refuse(f"{name}={value!r} is not exact in f32, the type of ONNX's attributes")
        return value

    # --- nodes ---

    def emit(self, op: str, *inputs: str | None, dtype: str = "", **attrs: Any) -> str:
        """Adds a node with one result and returns the result's name. `dtype` is that of the result,
        if the schema does not determine it.
        """
        return self._builder.node(self._label, op, inputs, 1, dtype, attrs)[0]

    def emit_many(
        self, op: str, *inputs: str | None, outputs: int, **attrs: Any
    ) -> tuple[str, ...]:
        """Adds a node with several results and returns their names."""
        return self._builder.node(self._label, op, inputs, outputs, "", attrs)

    def constant(self, value: Array, dtype: str = "") -> str:
        """Adds a constant and returns its name."""
        array = np.asarray(value, to_numpy(dtype) if dtype else None)
        return self._builder.constant(array)

    def integers(self, *values: int) -> str:
        """Adds a vector of i64, as ONNX takes shapes and axes, and returns its name."""
        return self._builder.constant(np.array(values, np.int64))

    def scalar(self, value: float, like: str) -> str:
        """Adds a constant of one element with the dtype of a value."""
        return self.constant(np.asarray(value), self.dtype(like))

    def dtype(self, name: str) -> str:
        """Returns the dtype of a value."""
        return self._builder.dtypes[name]

    def number(self, dtype: str) -> int:
        """Returns ONNX's number of a dtype."""
        return self._builder.number_of(dtype)

    # --- what many rules need ---

    def cast(self, name: str, dtype: str) -> str:
        """Returns a value in another dtype; the value itself if it has that dtype."""
        return name if self.dtype(name) == dtype else self._cast(name, dtype)

    def _cast(self, name: str, dtype: str) -> str:
        return self.emit("Cast", name, dtype=dtype, to=self.number(dtype))

    def transposed(self, name: str, axes: Sequence[int]) -> str:
        """Returns a value with its axes in another order; constants are transposed here."""
        if list(axes) == list(range(len(axes))):
            return name
        folded = self._builder.derived(
            name, "transpose" + str(list(axes)), lambda a: a.transpose(axes)
        )
        return folded or self.emit("Transpose", name, perm=list(axes))

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """Returns a value in another shape, of as many elements; constants are reshaped here."""
        folded = self._builder.derived(
            name, "reshape" + str(list(shape)), lambda a: a.reshape(shape)
        )
        return folded or self.emit("Reshape", name, self.integers(*shape))

    def inverse(self, name: str) -> str:
        """Returns the reciprocals of a value; those of constants are computed here."""
        return self._builder.derived(name, "1/", lambda a: 1 / a) or self.emit("Reciprocal", name)

    def derived(
        self,
        name: str,
        how: str,
        change: Callable[[NDArray[Any]], NDArray[Any]],
        dtype: str = "",
    ) -> str:
        """Returns a constant that is computed from another one, in a dtype if one is given. `how`
        identifies the computation.
        """
        found = self._builder.derived(name, how, change, dtype)
        assert found is not None, f"{name} is not a constant"
        return found
