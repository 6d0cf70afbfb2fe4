"""The common part of backends whose engine reads ONNX models: a region is written as an ONNX model
and runs as a session of the engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from clew.backends.backend import Backend, CompiledRegion
from clew.backends.calls import kind_of
from clew.exporters.onnx.writer import can_write, write
from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.types import TensorType, leaves
from clew.machine.target import Target
from clew.support.errors import ClewError

Array: TypeAlias = "np.ndarray[Any, Any]"
Session: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""Runs a model on arrays in the order of its inputs. The results are new arrays each time."""

_EXCHANGED: Final = frozenset(
    {"bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"}
)
"""The dtypes of arrays that engines read and return."""
_PROBED: Final = 4096  # kinds of calls whose answer is kept


class EngineRegion:
    """A region as a session of an engine, and its ONNX model."""

    owns_results: Final = True

    def __init__(self, model: bytes, session: Session) -> None:
        self.model = model
        self._session = session

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        return tuple(self._session(arrays))


class OnnxEngine(Backend):
    """A backend that runs ONNX models in the host's memory.

    It takes calls that have an ONNX form of the same meaning and that the engine accepts. Each kind
    of call is checked once.
    """

    _memo: ClassVar[dict[Any, str]]

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.key = self.version()  # not the threads: a record is a model for any number of them

    def __init_subclass__(cls) -> None:
        cls._memo = {}

    @staticmethod
    @abstractmethod
    def version() -> str:
        """Returns the engine's version."""

    @abstractmethod
    def session(self, model: bytes) -> Session:
        """Returns a session of a model, serialized. Exceptions are those of the engine."""

    @abstractmethod
    def accepts(self, model: bytes) -> str:
        """Returns why the engine rejects a model of one operator; empty if it accepts it."""

    def wrong(self, call: Call) -> str:
        """Returns why the engine must not get a call that it accepts: it computes the call
        differently, or fails to run it. Empty if it may.
        """
        return ""

    def at_threads(self, threads: int) -> Backend:
        return type(self)(threads)

    def takes(self, call: Call) -> bool:
        return not self.why_not(call)

    def why_not(self, call: Call) -> str:
        key = kind_of(call)
        if key not in self._memo:
            if len(self._memo) >= _PROBED:
                self._memo.clear()
            self._memo[key] = self._asked(call)
        return self._memo[key]

    def _asked(self, call: Call) -> str:
        reason = can_write(call) or self.wrong(call) or _not_exchanged(call)
        if reason:
            return reason
        params: list[Var] = []
        args: list[Expr] = []
        for number, arg in enumerate(call.args):
            if isinstance(arg, Constant):
                args.append(arg)
            else:
                params.append(Var(f"x{number}", arg.tensor))
                args.append(params[-1])
        try:
            model = write(Function(params, Call(call.op, args, call.attrs))).model
        except ClewError as error:
            return error.message
        return self.accepts(model.SerializeToString())

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        return self._region(write(region).model.SerializeToString())

    def _region(self, model: bytes) -> EngineRegion:
        return EngineRegion(model, self.session(model))

    def to_record(self, region: CompiledRegion) -> bytes | None:
        assert isinstance(region, EngineRegion)
        return region.model

    def of_record(self, record: bytes) -> CompiledRegion:
        return self._region(record)


def _not_exchanged(call: Call) -> str:
    """Returns why engines cannot exchange the arrays of a call; empty if they can."""
    brought = [a.type for a in call.args if not isinstance(a, Constant)]
    types = (t for whole in (*brought, call.type) for t in leaves(whole))
    dtypes = (t.dtype for t in types if isinstance(t, TensorType))
    other = next((d for d in dtypes if d not in _EXCHANGED), "")
    return f"it exchanges no arrays of {other}" if other else ""
