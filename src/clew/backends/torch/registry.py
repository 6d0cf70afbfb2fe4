"""Rules that run operators with torch, one per operator.

```python
@builds("nn.leaky_relu")
def leaky_relu(b: Building) -> Step:
    alpha = b.attrs.alpha
    return lambda x: functional.leaky_relu(x, alpha)
```

A rule returns a function of the call's arguments as tensors, which it must not write. It refuses a
call that torch runs with another result than the operator's reference with `b.refuse(reason)`.
Dtypes that torch lacks, tensors without elements and data-dependent attributes are refused before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from clew.backends.torch.tensors import DTYPES, Array, tensor_of
from clew.ir.expr import ArgRef, Call
from clew.ir.types import NARROW_FLOATS, TensorType, TupleType, is_float
from clew.ops.registry import Op
from clew.ops.rules import Refused, RuledCall, Rules

Step: TypeAlias = Callable[..., Any]
"""Runs a call: from the tensors of its arguments to its result, or a tuple of its results."""
Rule: TypeAlias = "Callable[[Building], Step]"

_RULES: Final[Rules[Rule]] = Rules()


def builds(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: registers the rule of operators."""
    return _RULES.register(*names)


def built_operators() -> frozenset[str]:
    """Returns the names of the operators with a rule."""
    return frozenset(_RULES)


class Building(RuledCall):
    """A call that a rule builds a step for. While it is only checked (`probing`), its step will not
    run, and the values of large constants do not decide and need not be read.
    """

    def __init__(self, call: Call, *, probing: bool = False) -> None:
        super().__init__(call)
        self.probing = probing

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result."""
        return DTYPES[self.type.dtype]

    def constant(self, value: Array | np.generic | float, dtype: str = "") -> torch.Tensor:
        """Returns a constant as a tensor, by default of the dtype of the array."""
        made = tensor_of(np.asarray(value))
        return made.to(DTYPES[dtype]) if dtype else made

    def argument(self, n: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Step:
        """Returns a function that changes argument `n`. It does so once if it is a constant."""
        known = self.known(n)
        if known is None:
            return change
        if self.probing:
            return lambda _: torch.empty(0)
        changed = change(tensor_of(known))
        return lambda _: changed

    def converted(self, n: int, dtype: torch.dtype) -> Step:
        """Returns a function that converts argument `n`, as `argument` does."""
        return self.argument(n, lambda x: x.to(dtype))

    def widened(self, step: Step) -> Step:
        """Returns a step that computes in f32 if an argument is a narrow float, and rounds once."""
        if not any(t.dtype in NARROW_FLOATS for t in self.types):
            return step
        each = [
            self.converted(n, torch.float32) if t.dtype in NARROW_FLOATS else _same
            for n, t in enumerate(self.types)
        ]
        dtype = self.dtype
        return lambda *xs: step(*(f(x) for f, x in zip(each, xs, strict=True))).to(dtype)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def results_of(call: Call) -> tuple[Any, ...]:
    """Returns the types of a call's results."""
    return call.type.fields if isinstance(call.type, TupleType) else (call.type,)


def step_of(call: Call, *, probing: bool = False) -> Step:
    """Returns the step of a call.

    Errors: Refused if torch does not run the call.
    """
    _check(call)
    rule = _RULES.get(call.op_name)
    if rule is None:
        raise Refused("torch has no operator of the same meaning that is known")
    return rule(Building(call, probing=probing))


def _check(call: Call) -> None:
    if not isinstance(call.op, Op) or not call.op.is_builtin:
        raise Refused(f"{call.op_name} is not an operator of clew")
    if any(isinstance(value, ArgRef) for value in call.attrs.values()):
        raise Refused("attributes are known only during the run")
    for type_ in (*(a.type for a in call.args), *results_of(call)):
        if not isinstance(type_, TensorType):
            raise Refused(f"a value is of type {type_}")
        if not type_.is_static:
            raise Refused(f"the sizes of {type_} are not static")
        if 0 in type_.shape:
            raise Refused(f"{type_} has no elements")
        if type_.layout:
            raise Refused(f"{type_} has its own layout")
        if type_.dtype not in DTYPES:
            raise Refused(f"torch does not compute in {type_.dtype}")


def wide_dtype(type_: TensorType) -> torch.dtype:
    """Returns the dtype that sums of elements are accumulated in."""
    narrow = is_float(type_.dtype) and type_.dtype in NARROW_FLOATS
    return torch.float32 if narrow else DTYPES[type_.dtype]
