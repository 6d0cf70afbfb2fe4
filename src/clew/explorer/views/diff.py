"""Two builds side by side, layer by layer."""

from __future__ import annotations

from clew.compare.report import DiffReport
from clew.compare.rows import LayerDiff
from clew.compare.show import findings
from clew.compare.times import Timing
from clew.explorer.schema import Diff, LayerChange
from clew.explorer.session import Session

_NS = 1e3  # a microsecond
_NONE = -1


def diff_view(report: DiffReport, a: Session, b: Session) -> Diff:
    """Returns the result of `clew.diff` on two sessions' models, layers in the order of A."""
    summary = report.summary
    time = summary.time
    return Diff(
        a=a.model,
        b=b.model,
        layers=[_change(layer, a, b) for layer in report.layers],
        kinds=dict(summary.differs),
        summary=list(findings(report)),
        a_wall_ns=time.a * _NS if time is not None else None,
        b_wall_ns=time.b * _NS if time is not None else None,
    )


def _change(layer: LayerDiff, a: Session, b: Session) -> LayerChange:
    """Returns a layer's differences; `kinds` is empty if there are none."""
    numerics = layer.numerics
    return LayerChange(
        a=_NONE if layer.a is None else a.layers[layer.a],
        b=_NONE if layer.b is None else b.layers[layer.b],
        how=layer.how,
        kinds=list(layer.differs),
        sentences=[f"{kind}: {text}" for kind, text in layer.differs.items()],
        a_ns=_ns(layer.time, layer.a, first=True),
        b_ns=_ns(layer.time, layer.b, first=False),
        error=numerics.between.worst if numerics is not None else None,
    )


def _ns(time: Timing | None, layer: str | None, *, first: bool) -> float | None:
    if time is None or layer is None:
        return None
    return (time.a if first else time.b) * _NS
