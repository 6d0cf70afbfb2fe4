"""Rotary embedding: pairs of elements turned by angles. Source: Su et al., RoFormer, 2021."""

from __future__ import annotations

from clew.frontends.building import call, reshaped
from clew.frontends.lowering.attention import part
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines that broadcast to half of the rotated elements of [B, S, N, D]."""

    cos: Expr
    sin: Expr
    interleaved: bool

    def of(self, x: Expr) -> Expr:
        """Returns a tensor [B, S, N, D] with the first elements of each head rotated."""
        half = self.cos.tensor.shape[-1]
        width = x.tensor.shape[-1]
        whole, rest = part(x, 3, 0, 2 * half), part(x, 3, 2 * half, width)
        lead = x.tensor.shape[:3]
        if self.interleaved:
            pairs = reshaped(whole, (*lead, half, 2))
            real, imaginary = (reshaped(part(pairs, 4, n, n + 1), (*lead, half)) for n in (0, 1))
        else:
            real, imaginary = part(whole, 3, 0, half), part(whole, 3, half, 2 * half)
        cos, sin = self.cos, self.sin
        turned: list[Expr] = [
            call("subtract", call("multiply", real, cos), call("multiply", imaginary, sin)),
            call("add", call("multiply", real, sin), call("multiply", imaginary, cos)),
        ]
        if self.interleaved:
            turned = [reshaped(t, (*lead, half, 1)) for t in turned]
        result: Expr = call("concatenate", *turned, axis=len(turned[0].tensor.shape) - 1)
        result = reshaped(result, (*lead, 2 * half))
        return (
            result if rest is x or width == 2 * half else call("concatenate", result, rest, axis=3)
        )
