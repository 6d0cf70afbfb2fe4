"""Values inside a model, captured in a run of the imported graph, which returns them as outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.backends.compile_options import CompileOptions
from clew.compiling.compile import build_model
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.serving.built_model import BuiltModel
from clew.trace.span import Span

Array = np.ndarray[Any, Any]
# One kernel per imported operator, without rewrites: equivalent to a reference, but at the speed of
# native code. Nodes that depend only on parameters are folded, since kernels do not support all
# their dtypes.
AS_IMPORTED: Final[Mapping[str, Any]] = {"opt_level": 0, "required": ("FoldConstant",)}


class Unkept:
    """An instrument that does nothing. The disk cache keeps only the kernels of a build with an
    instrument, and so no copies of a model's weights for every part.
    """


@dataclass(frozen=True)
class Captured:
    """Values of a run: the model's inputs by name, and the requested values by node id."""

    inputs: Mapping[str, Array]
    values: Mapping[int, Array]

    def of(self, node: Expr) -> Array:
        """Returns the value of a requested node, an input or a constant."""
        if isinstance(node, Constant):
            return node.data
        return self.values[node.id]


def capture(
    module: Module,
    nodes: Sequence[Expr],
    inputs: Any = None,
    *,
    seed: int = 0,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Captured:
    """Returns values of nodes of `main` in a run with these inputs, by name or in order. Inputs
    missing from a mapping are random, with `seed`, as on the command line.

    Errors: I040 to I043 for inputs that do not match, I061 for unknown sizes.
    """
    wanted = {n.id: n for n in nodes if not isinstance(n, (Var, Constant))}
    model = compiled_for(module, list(wanted.values()), threads=threads, on_progress=on_progress)
    values_ = {} if inputs is None else model.named_inputs(inputs, partial=True)
    given = dict(zip(model.input_names, model.drawn(values_, seed=seed), strict=True))
    results = model(given) if wanted else ()
    arrays = results if len(wanted) > 1 else (results,)
    values = dict(zip(wanted, map(np.asarray, arrays), strict=bool(wanted)))
    params = {p.id: given[p.name] for p in module.main.params}
    return Captured(given, {**params, **values})


def giving(module: Module, nodes: Sequence[Expr]) -> Module:
    """Returns a module whose outputs are the values of these nodes."""
    names = tuple(f"v{n}" for n in range(len(nodes)))
    body = Tuple(nodes, span=Span())
    main = Function(module.main.params, body, {"outputs": names}, span=Span())
    return module.with_functions({"main": main})


def compiled_for(
    module: Module,
    nodes: Sequence[Expr],
    *,
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> BuiltModel:
    """Returns a model, compiled as imported, that returns the values of nodes."""
    return build_model(
        giving(module, nodes),
        CompileOptions(threads=threads, on_progress=on_progress).changed(
            **AS_IMPORTED, trace=False, instruments=[Unkept()]
        ),
    )
