"""The PyTorch frontend: `from_torch` reads a module into graph IR. It imports `torch`.

Each call of an ATen operator is a layer, named by the path of the module that makes it; `CodePlace`
holds the user's line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clew.frontends import torch_library  # noqa: F401  first: it says what to install
from clew.frontends.torch.converters import (  # noqa: F401  registers converters
    attention,
    backward,
    complex,
    control,
    convolution,
    create,
    elementwise,
    indexing,
    inverse_error,
    linalg,
    movement,
    norm,
    products,
    quantized,
    random,
    recurrent,
    reduce,
    same,
    sorting,
    special,
    strided,
)
from clew.frontends.torch.exporting import Exported, exported
from clew.frontends.torch.file import saved_program
from clew.frontends.torch.program import ProgramImporter
from clew.frontends.torch.registry import converter, supported
from clew.ir.module import Module
from clew.support.budgets import Budgets, in_force
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


@coded_exhaustion
def from_torch(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Module:
    """Returns the graph IR of a PyTorch module, which is exported with example inputs, or of an
    exported program. The arguments are those of `torch.export.export`.

    A size that `dynamic_shapes` leaves open has the name of its `Dim`. Weights are copied.

    Errors: I415 (torch is not installed), I410 (wrong arguments), M050 (torch cannot export the
    module), U060 to U066 (operators, dtypes and devices that are not supported).
    """
    found = exported(model, args, kwargs, dynamic_shapes)
    return ProgramImporter(found.decomposed(), found).run()


def load(
    source: str | os.PathLike[str] | ExportedProgram,
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the graph IR of a program, or of a file that `torch.export.save` wrote. No code in
    the file runs, unless the user trusts it (`file/`).

    Errors: M052 (it is damaged), M053 (only a trusted file may be read), and those of `from_torch`;
    I140 for `inputs`, because the program contains its sizes.
    """
    if inputs:
        raise InputError(
            "I140",
            "an exported program already contains the shapes of its inputs",
            hint="export it again with other inputs, or give free sizes: compile(..., sizes={...})",
        )
    with in_force(budgets):
        saved = isinstance(source, (str, os.PathLike))
        found = Exported(saved_program(source) if saved else source)
        return ProgramImporter(found.decomposed(), found).run()


__all__ = ["converter", "from_torch", "load", "supported"]
