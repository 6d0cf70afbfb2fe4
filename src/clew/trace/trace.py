"""The trace of one compilation, with queries in both directions.

```python
trace.layer("conv1")  # its story, from the model to instructions
trace.backward(AsmRef(call, 17)).layers  # the layers of one instruction
trace.forward(LayerRef("conv1")).asm  # all instructions of a layer
trace.check()  # gaps; empty in a sound compilation
```

Everything is computed on first use and then cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clew.support.calling import in_order
from clew.trace.created import Created, created_in
from clew.trace.fates import Fate, Gap, fate_of, find_gaps
from clew.trace.links import Link
from clew.trace.queries import Kernels, Queries, Reader
from clew.trace.stages import StageRecord
from clew.trace.story import LayerStory, tell

if TYPE_CHECKING:
    from clew.trace.verify import VerifyReport

Verifier = Callable[["Trace", Mapping[str, Any], float, float], "VerifyReport"]


class Trace(Queries):
    """Stages, the links between them, and kernels (given by a callable, which is called on first
    use).

    `links` are passed in if there is no lineage: in a trace read from an export.
    """

    def __init__(
        self,
        stages: Sequence[StageRecord],
        reader: Reader,
        kernels: Kernels = (),
        verifier: Verifier | None = None,
        links: Mapping[int, Sequence[Link]] | None = None,
    ) -> None:
        super().__init__(stages, reader, kernels, links)
        self._verifier = verifier

    def layer(self, layer: str) -> LayerStory:
        """Returns a layer's story: every stage, its fate, remarks, kernels and instructions.

        Errors: I070 if the model lacks the layer.
        """
        return tell(self, self.need_layer(layer))

    def accounted(self) -> dict[str, Fate]:
        """Returns the fate of each layer."""
        return {layer: fate_of(self, layer) for layer in self.layers}

    def created(self) -> list[Created]:
        """Returns the operators that passes created, each with the layers that it serves. Those
        without layers are explained by nothing in the model.
        """
        return list(created_in(self))

    def check(self) -> list[Gap]:
        """Returns the gaps in the trace; empty in a sound compilation."""
        return find_gaps(self)

    def verify(
        self,
        /,
        *inputs: Any,
        rtol: float = 1e-4,
        atol: float = 1e-6,
        **named: Any,
    ) -> VerifyReport:
        """Evaluates both ends of every *same* link on these inputs and compares them.

        Inputs are given as to the compiled model: in order, as a mapping by name, or as keywords.
        Tolerances are relative to the largest magnitude in the tensor.

        Errors: I040 and I041 (the inputs).
        """
        assert self._verifier is not None, "this trace cannot run graphs"
        names = self.stages[0].module.input_names
        given = in_order(names, inputs, named, options=("rtol", "atol"))
        return self._verifier(self, dict(zip(names, given, strict=True)), rtol, atol)
