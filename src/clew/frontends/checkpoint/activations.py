"""The activations that configurations name."""

from __future__ import annotations

from typing import Final

from clew.frontends.building import call
from clew.frontends.checkpoint.config import Config, unsupported
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Activation:
    """An operator with its attribute `approximate` ("" for none), whose result may be squared."""

    op: str
    approximate: str = ""
    squared: bool = False

    @property
    def name(self) -> str:
        """The operator without its dialect."""
        return self.op.removeprefix("nn.")

    def of(self, x: Expr) -> Expr:
        """Returns the activation of `x`."""
        attrs = {"approximate": self.approximate} if self.approximate else {}
        found: Expr = call(self.op, x, **attrs)
        return call("multiply", found, found) if self.squared else found


_ACTIVATIONS: Final = {
    "silu": Activation("nn.silu"), "swish": Activation("nn.silu"),
    "relu": Activation("nn.relu"), "relu2": Activation("nn.relu", squared=True),
    "gelu": Activation("nn.gelu", "none"), "gelu_new": Activation("nn.gelu", "tanh"),
    "gelu_fast": Activation("nn.gelu", "tanh"), "gelu_pytorch_tanh": Activation("nn.gelu", "tanh"),
}  # fmt: skip


def activation_of(config: Config, name: str, default: str | None = None) -> Activation:
    """Returns the activation that the field `name` of a configuration names.

    Errors: M071; U009 for an unsupported one.
    """
    found = config.text(name) if default is None else config.text(name, default)
    if found not in _ACTIVATIONS:
        raise unsupported(f"models with the activation {found!r:.40}")
    return _ACTIVATIONS[found]
