"""SignedOperands: removes the offset that makes a convolution's operand unsigned for CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from clew.backends.vta.recognize import fits_machine
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import users
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext

_OFFSET: Final = 128
_MOST_STEPS: Final = 5


@dataclass(frozen=True)
class SignedOperands(Pass):
    """Restores the signed operands of convolutions that VTA may run.

    For CPUs that multiply unsigned by signed bytes, 128 is added to signed operands, and 128 times
    the sum of the weights is subtracted from the sums. VTA multiplies signed bytes.

    Before:
        %1 = cast(add(cast(%x), 128)); %2 = pad(%1, value=128); %3 = add(nn.conv2d(%2, %w), c)
    After:
        %2 = pad(%x, value=0); %3 = nn.conv2d(%2, %w)

    Preconditions: runs just before regions are formed. Non-goals: operands with another offset,
    convolutions that VTA cannot run, and those whose results stay floats: the CPU runs them.
    """

    opt_level: ClassVar[int] = 0

    block_in: int = 16

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Signed(self.block_in).rewrite_module(module)


class _Signed(Rewriter):
    of_function: ClassVar[tuple[str, ...]] = ("_users",)

    def __init__(self, block_in: int) -> None:
        super().__init__()
        self._block_in = block_in
        self._users: dict[int, list[Expr]] = {}

    def enter(self, function: Function) -> None:
        self._users = users(function)

    def _becomes_integers(self, sums: Expr) -> bool:
        """Whether a sum is scaled to integers again, after at most some additions and a relu."""
        node: Expr = sums
        for _ in range(_MOST_STEPS):
            reading = self._users.get(node.id, ())
            if len(reading) != 1 or not isinstance(reading[0], Call):
                return False
            node = reading[0]
            if node.op_name in ("requantize", "fake_quantize"):
                return True
            if node.op_name not in ("add", "dequantize", "nn.relu"):
                return False
        return False

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "add" or not self._becomes_integers(old):
            return new
        for conv, extra in (new.args, new.args[::-1]):
            if not isinstance(extra, Constant) or not isinstance(conv, Call):
                continue
            if conv.op_name != "nn.conv2d" or not fits_machine(conv, self._block_in):
                continue
            data, weight = conv.args
            value = _signed(data)
            if value is None or not isinstance(weight, Constant):
                continue
            with self.covers(old, *old.args):
                sums = weight.data.astype(np.int64).sum(axis=(1, 2, 3)).reshape(-1, 1, 1)
                left = extra.data + _OFFSET * sums
                signed = conv.with_args([value, weight])
                if not left.any():
                    return signed
                return get_op("add")(signed, Constant(left.astype(np.int32)))
        return new


def _signed(data: Expr) -> Expr | None:
    """Returns the signed form of an operand, padded with 0; None if it has no offset of 128."""
    if isinstance(data, Call) and data.op_name == "pad":
        inner = _signed(data.args[0])
        if inner is None or data.attrs.value != _OFFSET:
            return None
        return get_op("pad")(inner, **{**data.attrs, "value": 0.0})
    if not _is_cast(data, "u8"):
        return None
    assert isinstance(data, Call)
    moved = data.args[0]
    if not isinstance(moved, Call) or moved.op_name != "add":
        return None
    for wide, offset in (moved.args, moved.args[::-1]):
        constant = isinstance(offset, Constant) and np.all(offset.data == _OFFSET)
        if constant and _is_cast(wide, "i32"):
            assert isinstance(wide, Call)
            value = wide.args[0]
            return value if value.tensor.dtype == "i8" else None
    return None


def _is_cast(node: Expr, dtype: str) -> bool:
    return isinstance(node, Call) and node.op_name == "cast" and node.tensor.dtype == dtype
