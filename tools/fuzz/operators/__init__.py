"""What every operator takes: one entry each, in a table that the generator draws from.

```python
@operator("Gather")
def gather(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    axis = g.axis(x.rank)
    return g.emit("Gather", [x, g.indices(x.sizes[axis])], axis=axis)
```

An entry draws operands and attributes that are valid together; element types come from ONNX's
schema of the model's opset, the results' types from its inference. It raises `Unfit` where what it
drew does not suit. `weight` says how often it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import onnx

if TYPE_CHECKING:
    from fuzz.graph import Grower

Make = Callable[["Grower"], object]


@dataclass(frozen=True)
class Entry:
    """An operator and how it is drawn."""

    domain: str
    op: str
    make: Make
    weight: int = 2

    @property
    def name(self) -> str:
        """The operator's name, with its domain where that is not ONNX's own."""
        return f"{self.domain}::{self.op}" if self.domain else self.op


ENTRIES: Final[dict[tuple[str, str], Entry]] = {}


def operator(*ops: str, domain: str = "", weight: int = 2) -> Callable[[Make], Make]:
    """Decorator: enters operators into the table. With several, `g.schema` tells which it is."""

    def enter(make: Make) -> Make:
        for op in ops:
            assert (domain, op) not in ENTRIES, op
            ENTRIES[domain, op] = Entry(domain, op, make, weight)
        return make

    return enter


def schema_of(entry: Entry, version: int) -> onnx.defs.OpSchema | None:
    """Returns the operator's schema at a version of its domain; None where it has none."""
    try:
        found = onnx.defs.get_schema(entry.op, version, entry.domain)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found
