"""A converter's view of one call in an FX graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.layer import LayerBase
from clew.frontends.torch.dtypes import dtype_of
from clew.frontends.torch.values import Value, Values
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.support.errors import CompileError, UnsupportedError

EVAL: Final = "call model.eval(): clew compiles inference"
_HALVES: Final = {torch.float16, torch.bfloat16}


class Layer(LayerBase):
    """One call: its operator, its arguments by name, and the types of its results.

    Arguments are expressions for tensors, and dimensions for integers of torch. `fake(name)` is
    what torch knows of an argument: a tensor without data, or the number itself.
    """

    def __init__(
        self,
        node: fx.Node,
        name: str,
        op: str,
        arguments: Mapping[str, Value],
        fakes: Mapping[str, Any],
        importer: Values,
    ) -> None:
        super().__init__(name, op, importer.builder)
        self.node = node
        self.arguments = arguments
        self.importer = importer
        self._fakes = fakes

    # --- errors ---

    def unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        """Returns the error for a form of the operator that clew does not have."""
        return UnsupportedError("U063", f"{self.op}: {what}", hint=hint)

    def _lacks(self, name: str, wanted: str) -> CompileError:
        return CompileError("C083", f"{self.op} has no {wanted} {name!r}: a bug in clew")

    def with_arguments(self, /, **changed: Value) -> Layer:
        """Returns the call with other arguments."""
        arguments = {**self.arguments, **changed}
        return Layer(self.node, self.name, self.op, arguments, self._fakes, self.importer)

    # --- arguments ---

    def __getitem__(self, name: str) -> Value:
        return self.arguments[name]

    def get(self, name: str, default: Value = None) -> Value:
        """Returns an argument; the default if the operator lacks it or it is None."""
        found = self.arguments.get(name)
        return default if found is None else found

    def has(self, name: str) -> bool:
        """Whether an argument is given and not None."""
        return self.arguments.get(name) is not None

    def fake(self, name: str) -> Any:
        """Returns what torch knows of an argument."""
        return self._fakes.get(name)

    def tensor(self, name: str = "self") -> Expr:
        """Returns an argument as a tensor; a number becomes a scalar of the dtype that torch gives
        it.
        """
        value = self.arguments.get(name)
        if isinstance(value, Expr):
            return value
        fake = self.fake(name)
        if isinstance(value, (bool, int, float, SymDim)):
            dtype = "f64" if isinstance(fake, (float, torch.SymFloat)) else "i64"
            return self.importer.scalar_of(value, "bool" if isinstance(value, bool) else dtype)
        raise self._lacks(name, "tensor")

    def truth(self, name: str = "self") -> Expr:
        """Returns an argument as booleans; numbers are true if they are not zero."""
        x = self.tensor(name)
        dtype = x.tensor.dtype
        return x if dtype == "bool" else call("not_equal", x, scalar(0, dtype))

    def optional(self, name: str) -> Expr | None:
        """Returns an argument as a tensor, None if it is absent."""
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[Expr]:
        """Returns a list of tensors."""
        values = self.arguments[name]
        if not isinstance(values, (list, tuple)) or not all(isinstance(v, Expr) for v in values):
            raise self._lacks(name, "list of tensors")
        return list(values)

    def type(self, name: str = "self") -> TensorType:
        """Returns the type of a tensor."""
        return self.tensor(name).tensor

    def number(self, name: str, default: float | None = None) -> Any:
        """Returns a number that is known now. Errors: U063."""
        value = self.get(name, default)
        if isinstance(value, Constant) and value.tensor.size == 1:
            return value.data.reshape(-1)[0].item()
        if isinstance(value, (bool, int, float)):
            return value
        raise self.unsupported(f"{name} is known only during the run")

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns whether an argument is true."""
        return bool(self.get(name, default))

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns an integer that is known now. Errors: U063."""
        return int(self.number(name, default))

    def dim(self, name: str, default: Dim | None = None) -> Dim:
        """Returns an integer as a dimension."""
        return self.importer.dim_of(self.get(name, default), self.fake(name))

    def dims(self, name: str, default: Sequence[Dim] = ()) -> tuple[Dim, ...]:
        """Returns a list of integers as dimensions; one integer is a list of one."""
        found, fakes = self.get(name, default), self.fake(name)
        if not isinstance(found, (list, tuple)):
            found, fakes = [found], [fakes]
        if not isinstance(fakes, (list, tuple)) or len(fakes) != len(found):
            fakes = found
        return tuple(map(self.importer.dim_of, found, fakes))

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Returns a list of integers that are known now. Errors: U063."""
        dims = self.dims(name, default)
        if not all(isinstance(d, int) for d in dims):
            raise self.unsupported(f"{name} is known only during the run")
        return dims  # type: ignore[return-value]

    def spread(self, name: str, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Returns a number for each of `rank` axes; one number is for all of them."""
        found = self.integers(name, default) or tuple(default)
        return found * rank if len(found) == 1 else found

    def axis(self, name: str = "dim", rank: int | None = None) -> int:
        """Returns an axis counted from the front; an axis of a scalar is 0."""
        rank = self.type().rank if rank is None else rank
        return self.integer(name) % max(rank, 1)

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """Returns axes counted from the front: all of them, if none are given."""
        rank = self.type().rank
        given = self.integers(name) if self.has(name) else ()
        return tuple(sorted({a % max(rank, 1) for a in given})) or tuple(range(rank))

    def dtype(self, name: str = "dtype", default: str = "") -> str:
        """Returns a dtype argument as clew's name."""
        value = self.get(name)
        return dtype_of(value) if isinstance(value, torch.dtype) else default

    # --- sizes of a call ---

    def hint(self, name: str) -> int | None:
        """Returns an integer's value for the example inputs; None if it depends on data."""
        fake = self.fake(name)
        found = fake.node.hint if isinstance(fake, torch.SymInt) else fake
        return None if found is None else int(found)

    def known_size(self, axis: int) -> Dim | None:
        """Returns the size of an axis of the result as torch states it; None if it depends on
        data.
        """
        size = self.fakes[0].shape[axis]
        if isinstance(size, torch.SymInt) and not self.importer.sizes.is_named(size):
            return None
        return self.importer.sizes.dim(size)

    def require(self, left: Dim, how: str, right: Dim) -> None:
        """Adds a check of calls for a comparison of sizes, without which the operator fails in
        eager or gives a result of another rank.
        """
        self.importer.require(self.node, self.name, (left, how, right))

    # --- operators that a user declared ---

    def call_of(self, op: Op) -> Value:
        """Returns the results of the operator that the user bound this one to: tensors by position,
        other arguments by name.

        Errors: U063 for an argument that is neither a tensor nor an attribute of the operator;
        those of the operator.
        """
        tensors = [v for v in self.arguments.values() if isinstance(v, Expr)]
        values = {n: v for n, v in self.arguments.items() if not isinstance(v, Expr)}
        known = op.signature.attributes
        extra = [n for n, v in values.items() if n not in known and v is not None]
        if extra:
            raise self.unsupported(
                f"{op.name} has no attribute {extra[0]!r}",
                hint=f"declare it: def {op.name.rpartition('.')[2]}(..., *, {extra[0]})",
            )
        found = self.results_of(op, tensors, {n: v for n, v in values.items() if n in known})
        return found if isinstance(self.node.meta.get("val"), (list, tuple)) else found[0]

    # --- results ---

    @property
    def fakes(self) -> list[Any]:
        """Metadata of the results in torch."""
        found = self.node.meta.get("val")
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def result(self, index: int = 0) -> TensorType:
        """Returns the type of a result, as torch says."""
        return self.importer.type_of(self.fakes[index])

    def is_used(self, index: int) -> bool:
        """Whether some node takes a result of a call with several."""
        return any(
            user.target is not operator.getitem or user.args[1] == index for user in self.node.users
        )

    def promoted(self, *names: str, kind: PROMOTION = PROMOTION.DEFAULT) -> list[Expr]:
        """Returns arguments in the dtype that torch computes an elementwise operator in. Half
        precision stays: kernels compute it in f32.
        """
        fakes = [self.fake(name) for name in names]
        wide, result = elementwise_dtypes(*fakes, type_promotion_kind=kind)
        narrow = result if wide == torch.float32 and result in _HALVES else wide
        if narrow == torch.float32 and kind is PROMOTION.ALWAYS_BOOL:
            halves = {f.dtype for f in fakes if isinstance(f, torch.Tensor)} & _HALVES
            narrow = halves.pop() if len(halves) == 1 == len({*map(_kind, fakes)}) else narrow
        dtype = dtype_of(narrow)
        return [self.importer.as_dtype(self.arguments[name], dtype) for name in names]

    def to_result(self, x: Expr, index: int = 0) -> Expr:
        """Returns a value in the dtype of a result."""
        return cast(x, self.result(index).dtype)

    def shaped(self, x: Expr, index: int = 0) -> Expr:
        """Returns a value with the shape and dtype of a result."""
        wanted = self.result(index)
        return cast(reshaped(x, wanted.shape), wanted.dtype)

    def scalar(self, value: Any, like: Expr) -> Expr:
        """Returns a number as a scalar of the dtype of a tensor."""
        return self.importer.as_dtype(value, like.tensor.dtype)

    def filled(self, value: Any, index: int = 0) -> Expr:
        """Returns a result with equal elements; `value` may be known only during the run."""
        wanted = self.result(index)
        if isinstance(value, (bool, int, float)) and all(isinstance(d, int) for d in wanted.shape):
            return Constant.splat(value, wanted)
        one = self.importer.as_dtype(value, wanted.dtype)
        return call("broadcast_to", one, shape=wanted.shape) if wanted.rank else one


def _kind(fake: Any) -> Any:
    return fake.dtype if isinstance(fake, torch.Tensor) else None
