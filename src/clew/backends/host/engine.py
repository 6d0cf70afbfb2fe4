"""The host as a backend: it runs the operators that no kernel holds."""

from __future__ import annotations

from clew.backends.host.steps import HostStep
from clew.ir.expr import Call
from clew.ops.registry import Op, get_op


class HostSteps:
    """Makes the host steps of a program. `bounds` is how they treat indices out of range."""

    def __init__(self, bounds: str = "check") -> None:
        self.bounds = bounds

    def step(self, call: Call, sizes: tuple[str, ...]) -> HostStep:
        """Returns what runs an operator; its last arguments are the sizes of these names."""
        assert isinstance(call.op, Op)
        return HostStep(call.op, call.attrs, sizes, self.bounds)

    def size_of(self, axis: int) -> HostStep:
        """Returns what gives the size of an array's axis."""
        op = get_op("size_of")
        return HostStep(op, op.bind({"axis": axis}))
