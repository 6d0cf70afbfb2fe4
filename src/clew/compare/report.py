"""The result of `clew.diff`: two builds, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clew.compare.rows import LayerDiff, Rows
from clew.compare.state import State
from clew.support.errors import InputError
from clew.support.libraries import optional_library
from clew.support.shown import Shown, counted

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, repr=False)
class DiffReport(Rows, Shown):
    """Two builds side by side: `summary`, and the layers in the order of A; layers only in B come
    after the layer they follow there. `groups` are the smallest sets of layers whose kernels can be
    compared. Use `print` or rich to show it.
    """

    def _about(self) -> str:
        a, b = self.summary.a.name, self.summary.b.name
        return f"{a} and {b}: {len(self.changed)} of {counted(len(self.layers), 'layer')} differ"

    def to_json(self) -> dict[str, Any]:
        """Returns the report as nested dicts and lists of numbers and strings."""
        return asdict(self)

    def to_pandas(self) -> Any:
        """Returns a pandas data frame with a row for each layer.

        Errors: I165 if pandas is not installed.
        """
        absent = InputError("I165", "pandas is not installed", hint="pip install 'clew[profile]'")
        pandas = optional_library("pandas", absent)
        return pandas.DataFrame([_row(layer) for layer in self.layers])

    def __str__(self) -> str:
        from clew.compare.show import as_text  # noqa: PLC0415 - it imports rich

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from clew.compare.show import whole  # noqa: PLC0415 - it imports rich

        return whole(self)


def _row(layer: LayerDiff) -> dict[str, Any]:
    """Returns a layer's row in a data frame."""
    time, numerics = layer.time, layer.numerics
    a, b = layer.state_a or State(), layer.state_b or State()
    return {
        "a": layer.a,
        "b": layer.b,
        "op_a": layer.op_a,
        "op_b": layer.op_b,
        "how": layer.how,
        "confidence": layer.confidence,
        "group": layer.group,
        "differs": ", ".join(layer.differs),
        "kernels_a": ", ".join(p.kernel for p in a.kernels),
        "kernels_b": ", ".join(p.kernel for p in b.kernels),
        "type_a": a.type,
        "type_b": b.type,
        "fate_a": a.fate,
        "fate_b": b.fate,
        "us_a": time.a if time else None,
        "us_b": time.b if time else None,
        "us_spread": time.spread if time else None,
        "us_differs": time.differs if time else None,
        "value_at": numerics.at if numerics else None,
        "error": numerics.between.worst if numerics else None,
        "error_rms": numerics.between.rms if numerics else None,
        "error_a": numerics.a.worst if numerics and numerics.a else None,
        "error_b": numerics.b.worst if numerics and numerics.b else None,
        "rises": numerics.rises if numerics else None,
    }
