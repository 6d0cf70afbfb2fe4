"""The host as a backend: it runs the operators that are not in kernels."""

from __future__ import annotations

from clew.backends.host.steps import HostStep
from clew.ir.expr import Call
from clew.ops.largest import largest
from clew.ops.registry import Op, get_op


class HostSteps:
    """Creates the host steps of a program. `bounds` is the treatment of indices out of range."""

    def __init__(self, bounds: str = "check") -> None:
        self.bounds = bounds

    def step(self, call: Call, sizes: tuple[str, ...]) -> HostStep:
        """Returns the step that runs an operator. Its last arguments are the named sizes."""
        assert isinstance(call.op, Op)
        most = largest(call.args[0]) if call.op.name == "room" else None
        return HostStep(call.op, call.attrs, sizes, self.bounds, most)

    def size_of(self, axis: int) -> HostStep:
        """Returns the step that returns the size of an array's axis."""
        op = get_op("size_of")
        return HostStep(op, op.bind({"axis": axis}))
