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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clew.support.errors import InputError
from clew.trace.fates import PASSIVE, Fate, Gap, fate_of, find_gaps
from clew.trace.links import Link, LinkKind
from clew.trace.queries import Kernels, Node, Queries, Reader, Stages
from clew.trace.refs import NodeRef
from clew.trace.story import LayerStory, tell

if TYPE_CHECKING:
    from clew.trace.verify import VerifyReport

Verifier = Callable[["Trace", Sequence[Any], Mapping[str, Any], float, float], "VerifyReport"]
"""Trace, inputs in order and by name as in a call, rtol, atol."""


class Trace(Queries):
    """Stages, the links between them, and kernels. Stages and kernels may be given by callables,
    which are called on first use.

    `links` are passed in if there is no lineage: in a trace read from an export.
    """

    def __init__(
        self,
        stages: Stages,
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
        The links are those of the build for these inputs, which is made if there is none.
        Tolerances are relative to the largest magnitude in the tensor.

        Errors: those of a call, and of a build; I075 for a trace that was read from a file.
        """
        if self._verifier is None:
            raise InputError(
                "I075",
                "a trace read from a file cannot be evaluated",
                hint="verify the trace of the compiled model: compiled.trace.verify(x)",
            )
        return self._verifier(self, inputs, named, rtol, atol)


@dataclass(frozen=True)
class Created:
    """An operator that a pass created, with its line in the text of the stage, its type, and the
    layers that it was created for. Without layers, nothing in the model explains it.
    """

    pass_name: str
    ref: NodeRef
    line: int
    op: str
    type: str
    layers: tuple[str, ...]

    @property
    def is_explained(self) -> bool:
        """Whether it serves a layer of the model."""
        return bool(self.layers)

    def __str__(self) -> str:
        reason = f"for {', '.join(self.layers)}" if self.layers else "for no layer"
        return f"{self.pass_name}, line {self.line}: {self.op}: {self.type}, {reason}"


def created_in(trace: Queries) -> Iterator[Created]:
    """Yields the operators that passes created, in the order of passes and lines. An operator that
    computes the value of an older one, or that is an older one over other inputs, is not among
    them.
    """
    for stage, record in enumerate(trace.stages):
        if not stage or not record.changed:
            continue
        links, nodes = trace.links(stage), trace.nodes(stage)
        line_of = trace.printed(stage).line_of
        for id_ in sorted(record.difference.added, key=lambda n: line_of.get(n, 0)):
            node = nodes[id_]
            if trace.reader.kind(node) in PASSIVE:
                continue
            if any(_is_rebuilt(trace, stage, node, link) for link in links.backward(id_)):
                continue
            yield Created(
                record.name,
                NodeRef(stage, id_),
                line_of.get(id_, 0),
                trace.reader.title(node),
                str(node.type),
                trace.in_order(node.span.layers),
            )


def _is_rebuilt(trace: Queries, stage: int, node: Node, link: Link) -> bool:
    """Whether a node is an older one, perhaps in another layout or dtype."""
    title, old = trace.reader.title, trace.nodes(stage - 1)[link.old]
    return link.kind is not LinkKind.DERIVED or title(old) == title(node)
